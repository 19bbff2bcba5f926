//! Starting the relay, and what is on both sides of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::process::Command;

use handoff_testbed::running::{Ended, Listening};
use socket2::{Domain, Socket, Type};

/// Engines that need no module.
pub(crate) const ENGINES: [&str; 3] = ["splice", "memory", "copy"];

/// Bytes of connection `number` from a position on.
pub(crate) fn bytes_at(number: usize, position: usize, count: usize) -> Vec<u8> {
    (position..position + count)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16) ^ (number << 3)).wrapping_mul(31) as u8)
        .collect()
}

/// A relay under way.
pub(crate) struct Relay(Listening);

impl Deref for Relay {
    type Target = Listening;

    fn deref(&self) -> &Listening {
        &self.0
    }
}

impl Relay {
    /// Starts a relay on a free port of loopback.
    pub(crate) fn start(target: SocketAddr, options: &[&str]) -> Self {
        Self::start_as(command("127.0.0.1:0", target, options))
    }

    /// Starts a command that relays.
    pub(crate) fn start_as(command: Command) -> Self {
        Self(Listening::start_as(command))
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Ended {
        self.0.end()
    }
}

pub(crate) fn command(listen: &str, target: SocketAddr, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["relay", &format!("tcp-listen://{listen}"), &format!("tcp://{target}")]);
    command.args(["--json"]).args(options);
    command
}

/// A target that answers each connection with what it sent, to its end.
pub(crate) fn echo() -> SocketAddr {
    echo_at(Ipv4Addr::LOCALHOST)
}

/// The same at an address of this thread's namespace.
pub(crate) fn echo_at(host: Ipv4Addr) -> SocketAddr {
    serve_at(host, |mut stream| {
        let mut back = stream.try_clone().expect("clones");
        let _ = std::io::copy(&mut stream, &mut back);
        let _ = back.shutdown(Shutdown::Write);
    })
}

/// A target that does this with each connection, in a thread of its own.
pub(crate) fn serve(answer: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    serve_at(Ipv4Addr::LOCALHOST, answer)
}

fn serve_at(
    host: Ipv4Addr,
    answer: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
) -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((host, 0)).into()).expect("binds");
    // All connections of a test may wait at once. Where more wait than there is room for, the kernel begins to send
    // SYN cookies, and resets such a connection at its first keepalive.
    socket.listen(4_096).expect("listens");
    let listener = TcpListener::from(socket);
    serve_on(&listener, answer);
    listener.local_addr().expect("bound")
}

pub(crate) fn serve_on(
    listener: &TcpListener,
    answer: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
) {
    let listener = listener.try_clone().expect("clones");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answer) = (stream.expect("accepts"), answer.clone());
            std::thread::spawn(move || answer(stream));
        }
    });
}

/// Sends bytes and expects them back, to the end.
pub(crate) fn there_and_back(stream: TcpStream, number: usize, len: usize) {
    let mut sending = stream.try_clone().expect("clones");
    let sender = std::thread::spawn(move || {
        sending.write_all(&bytes_at(number, 0, len)).expect("sends");
        sending.shutdown(Shutdown::Write).expect("ends");
    });
    let mut back = Vec::new();
    { &stream }.read_to_end(&mut back).expect("receives");
    sender.join().expect("ends");
    assert!(back == bytes_at(number, 0, len), "what came back differs: {} of {len}", back.len());
}
