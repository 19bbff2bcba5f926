fn read(file: &handoff::File, span: handoff::Received) {
    let _ = file.read_at(span, 0);
}

fn main() {}
