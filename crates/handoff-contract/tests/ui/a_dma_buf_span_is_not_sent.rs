//! No ring of this process can send memory of others.

fn send(socket: &handoff::Socket, span: handoff::DmaBufSpan) {
    let _ = socket.send(span);
}

fn main() {}
