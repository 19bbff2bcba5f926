fn bring(threads: handoff::tokio::DriverThreads, connection: std::net::TcpStream) {
    let socket = threads.next().call(|driver| async move { driver.socket(connection) });
    drop(socket);
}

fn main() {}
