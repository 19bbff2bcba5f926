fn send(socket: &handoff::Socket, text: String) {
    let _ = socket.send(text);
}

fn main() {}
