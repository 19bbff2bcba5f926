fn travel(queue: handoff::RxQueue, exported: handoff::ExportedRxQueue) {
    std::thread::spawn(move || drop(exported));
    std::thread::spawn(move || drop(queue));
}

fn main() {}
