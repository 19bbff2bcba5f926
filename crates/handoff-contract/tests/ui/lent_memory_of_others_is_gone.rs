fn send(socket: &handoff::Socket, mut bytes: Box<[u8]>) {
    let _ = socket.send(bytes);
    bytes[0] = 1;
}

fn main() {}
