//! What a NIC puts into memory of others is received as places there.

fn receive(socket: &handoff::Socket, queue: &handoff::DmaBufQueue) {
    let _ = socket.receive(queue);
}

fn main() {}
