fn write(span: &mut handoff::Span) {
    span[0] = 1;
}

fn main() {}
