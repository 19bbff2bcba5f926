fn bring(threads: handoff::tokio::DriverThreads, socket: handoff::Socket) {
    drop(threads.next().call(|_| async move { socket.flush().await }));
}

fn main() {}
