fn travel(sending: handoff::Sending<handoff::Buffer>) {
    std::thread::spawn(move || drop(sending));
}

fn main() {}
