fn travel(span: handoff::Span) {
    std::thread::spawn(move || drop(span));
}

fn main() {}
