fn receive(socket: &handoff::Socket, bytes: std::sync::Arc<[u8]>) {
    let _ = socket.receive_exact(bytes);
}

fn main() {}
