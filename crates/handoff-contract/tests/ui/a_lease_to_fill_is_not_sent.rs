//! New pages are sent once their filling has ended.

fn send(socket: &handoff::Socket, pages: handoff::LeaseMut) {
    drop(socket.send(pages));
}

fn main() {}
