fn receive(socket: &handoff::Socket, span: handoff::SendSpan) {
    let _ = socket.receive_exact(span);
}

fn main() {}
