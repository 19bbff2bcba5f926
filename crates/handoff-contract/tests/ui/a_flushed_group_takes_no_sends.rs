fn late(socket: &handoff::Socket, mut group: handoff::Group<handoff::Buffer>, buffer: handoff::Buffer) {
    let _on_loan = group.flush();
    let _sent = socket.message(buffer).send_in(&mut group);
}

fn main() {}
