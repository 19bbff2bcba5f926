fn send(socket: &handoff::Socket) {
    let bytes = [0u8; 16];
    let _ = socket.send(&bytes[..]);
}

fn main() {}
