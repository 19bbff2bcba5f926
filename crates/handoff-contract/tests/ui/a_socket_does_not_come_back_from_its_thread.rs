fn bring(threads: handoff::tokio::DriverThreads, connection: std::net::TcpStream) {
    let socket = threads.next().run(|driver| async move { driver.socket(connection) });
    drop(socket);
}

fn main() {}
