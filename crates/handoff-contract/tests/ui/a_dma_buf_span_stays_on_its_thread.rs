fn travel(span: handoff::DmaBufSpan) {
    std::thread::spawn(move || drop(span));
}

fn main() {}
