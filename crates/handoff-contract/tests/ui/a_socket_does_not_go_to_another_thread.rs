fn bring(threads: handoff::tokio::DriverThreads, socket: handoff::Socket) {
    drop(threads.next().run(|_| async move { socket.flush().await }));
}

fn main() {}
