fn twice(socket: &handoff::Socket, buffer: handoff::Buffer) {
    let _first = socket.send(buffer);
    let _second = socket.send(buffer);
}

fn main() {}
