fn read(file: &handoff::File, span: handoff::Span) {
    let _ = file.read_at(span, 0);
}

fn main() {}
