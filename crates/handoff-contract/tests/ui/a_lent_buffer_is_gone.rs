fn touch(socket: &handoff::Socket, mut buffer: handoff::Buffer) {
    let _sending = socket.send(buffer);
    buffer[0] = 1;
}

fn main() {}
