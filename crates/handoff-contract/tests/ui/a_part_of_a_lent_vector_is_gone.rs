fn touch(socket: &handoff::Socket, buffers: Vec<handoff::Buffer>) {
    let _sending = socket.send(buffers);
    drop(buffers);
}

fn main() {}
