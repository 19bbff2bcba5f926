//! Running the relay, and what is on both sides of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

/// Longer than anything here takes, even under emulation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Engines that need no module.
pub(crate) const ENGINES: [&str; 3] = ["splice", "memory", "copy"];

/// Bytes of connection `number` from a position on.
pub(crate) fn bytes_at(number: usize, position: usize, count: usize) -> Vec<u8> {
    (position..position + count)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16) ^ (number << 3)).wrapping_mul(31) as u8)
        .collect()
}

/// A relay under way; killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) address: SocketAddr,
    errors: JoinHandle<String>,
}

/// How a relay ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) report: Value,
    pub(crate) errors: String,
}

impl Running {
    /// Starts a relay on a free port of loopback.
    pub(crate) fn start(target: SocketAddr, options: &[&str]) -> Self {
        Self::start_as(command("127.0.0.1:0", target, options))
    }

    pub(crate) fn start_as(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("reads");
        let address = line.trim().strip_prefix("handoff: listening on tcp://");
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().expect("an address");
        let errors = std::thread::spawn(move || {
            let mut text = line;
            errors.read_to_string(&mut text).expect("reads");
            text
        });
        Self { child, address, errors }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("can wait");
        stream
    }

    /// From another address of this machine.
    pub(crate) fn connect_from(&self, source: [u8; 4]) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((source, 0)).into()).expect("binds");
        socket.connect(&self.address.into()).expect("connects");
        socket.set_read_timeout(Some(PATIENCE)).expect("can wait");
        socket.into()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("is there");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let mut stdout = self.child.stdout.take().expect("piped");
        let mut text = String::new();
        stdout.read_to_string(&mut text).expect("reads");
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("can be waited for") {
                break status;
            }
            assert!(begin.elapsed() < PATIENCE, "still running: {text}");
            std::thread::yield_now();
        };
        let errors = std::mem::replace(&mut self.errors, std::thread::spawn(String::new));
        let errors = errors.join().expect("ends");
        let report = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ended { code: status.code(), report, errors }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, mostly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(listen: &str, target: SocketAddr, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["relay", &format!("tcp-listen://{listen}"), &format!("tcp://{target}")]);
    command.args(["--json"]).args(options);
    command
}

impl Ended {
    /// The report of a relay that ended well.
    pub(crate) fn well(self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.report
    }
}

/// A target that answers each connection with what it sent, to its end.
pub(crate) fn echo() -> SocketAddr {
    serve(|mut stream| {
        let mut back = stream.try_clone().expect("clones");
        let _ = std::io::copy(&mut stream, &mut back);
        let _ = back.shutdown(Shutdown::Write);
    })
}

/// A target that does this with each connection, in a thread of its own.
pub(crate) fn serve(answer: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
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
