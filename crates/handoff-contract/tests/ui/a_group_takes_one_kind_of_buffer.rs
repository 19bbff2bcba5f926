fn mix(socket: &handoff::Socket, group: &mut handoff::Group<handoff::Buffer>, buffer: handoff::SharedBuffer) {
    let _sent = socket.message(buffer).send_in(group);
}

fn main() {}
