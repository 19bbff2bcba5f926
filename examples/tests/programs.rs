//! The examples do what they say.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Not of whole pages.
const BYTES: usize = (3 << 20) + 1_234;

fn content() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7 % 251) as u8).collect()
}

/// A program that listens, and where.
struct Listening {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    address: String,
}

impl Listening {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("says where");
        let address = line.rsplit(' ').next().unwrap_or_default().trim().to_owned();
        Self { child, output, address }
    }

    /// What else it says.
    fn end(mut self) -> String {
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("text");
        assert!(self.child.wait().expect("ends").success(), "{said}");
        said
    }
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn receiver(target: &Path) -> Listening {
    let program = env!("CARGO_BIN_EXE_receive-spans");
    Listening::start(Command::new(program).arg("127.0.0.1:0").arg(target))
}

#[test]
fn memory_goes_to_a_socket_and_spans_to_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    fs::write(&source, content()).expect("written");
    let mut programs = vec![env!("CARGO_BIN_EXE_send-memory")];
    // A lane needs io_uring.
    let ring = handoff::Driver::new().expect("a driver").ring_unavailable().is_none();
    programs.extend(ring.then_some(env!("CARGO_BIN_EXE_send-bulk")));
    for program in programs {
        let receiver = receiver(&target);
        let mut sender = Command::new(program);
        sender.arg(&receiver.address).stdin(fs::File::open(&source).expect("there"));
        assert!(said(&mut sender).starts_with(&format!("{BYTES} bytes sent")), "{program}");
        assert!(receiver.end().starts_with(&format!("{BYTES} bytes received")), "{program}");
        assert!(fs::read(&target).expect("there") == content(), "{program}: what arrived differs");
        fs::remove_file(&target).expect("there");
    }
}

#[test]
fn a_file_goes_to_all_who_are_connected() {
    const READERS: usize = 5;
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("source");
    fs::write(&source, content()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fan-out"));
    command.args(["127.0.0.1:0", &READERS.to_string()]);
    command.stdin(fs::File::open(&source).expect("there"));
    let sender = Listening::start(&mut command);
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let mut far = TcpStream::connect(&sender.address).expect("it listens");
            thread::spawn(move || {
                let mut got = Vec::new();
                far.read_to_end(&mut got).expect("to its end");
                got
            })
        })
        .collect();
    for reader in readers {
        assert!(reader.join().expect("ends") == content(), "what arrived differs");
    }
    let said = sender.end();
    assert!(said.contains(&format!("sent to {READERS}")), "{said}");
}

#[test]
fn packets_go_in_segments() {
    const PACKETS: u64 = 60;
    let far = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = far.local_addr().expect("bound").to_string();
    let mut sender = Command::new(env!("CARGO_BIN_EXE_send-segments"));
    let said = said(sender.args([&address, &PACKETS.to_string()]));
    assert!(said.starts_with("60 packets sent in 2 messages"), "{said}");
    let mut packet = [0; 2000];
    for number in 0..PACKETS {
        let len = far.recv(&mut packet).expect("all are there");
        assert_eq!((len, &packet[..8]), (1200, &number.to_be_bytes()[..]));
        assert!(packet[8..len].iter().all(|byte| *byte == number as u8));
    }
}

#[test]
fn a_file_goes_through_a_relay() {
    let directory = tempfile::tempdir().expect("a directory");
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    fs::write(&source, content()).expect("written");
    let receiver = receiver(&target);
    let program = env!("CARGO_BIN_EXE_relay-stream");
    let relay = Listening::start(Command::new(program).args(["127.0.0.1:0", &receiver.address]));
    let mut sender = Command::new(env!("CARGO_BIN_EXE_send-file"));
    assert!(said(sender.arg(&source).arg(&relay.address)).contains(&format!("{BYTES} bytes by")));
    let relayed = relay.end();
    assert!(relayed.contains(&format!("there: {BYTES} bytes by")), "{relayed}");
    receiver.end();
    assert!(fs::read(&target).expect("there") == content(), "what arrived differs");
}

#[test]
fn framed_messages_come_back_whole() {
    let program = env!("CARGO_BIN_EXE_framed-messages");
    let server = Listening::start(Command::new(program).arg("127.0.0.1:0"));
    let mut client = TcpStream::connect(&server.address).expect("connects");
    for len in [5, 0, 1 << 20, 77_777] {
        let payload = content().split_off(BYTES - len);
        client.write_all(&(len as u32).to_le_bytes()).expect("sent");
        client.write_all(&payload).expect("sent");
        let mut answer = vec![0; 4 + len];
        client.read_exact(&mut answer).expect("comes back");
        assert_eq!(answer[..4], (len as u32).to_le_bytes());
        assert!(answer[4..] == payload, "what came back differs");
    }
    drop(client);
    let said = server.end();
    assert!(said.starts_with("4 messages from 127.0.0.1"), "{said}");
}

#[test]
fn an_axum_program_answers_from_memory_and_files() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("file"), content()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_http"));
    let mut server = Listening::start(command.arg("127.0.0.1:0").arg(directory.path()));
    let ask = |request: &str, body: &[u8]| {
        let mut client = TcpStream::connect(&server.address).expect("it listens");
        let len = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
        );
        client.write_all(head.as_bytes()).expect("sent");
        client.write_all(body).expect("sent");
        let mut all = Vec::new();
        client.read_to_end(&mut all).expect("to its end");
        let end = all.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
        (String::from_utf8_lossy(&all[9..12]).into_owned(), all.split_off(end + 4))
    };
    for _ in 0..2 {
        assert!(ask("GET /page", b"") == ("200".to_owned(), vec![b'.'; 1 << 20]));
    }
    assert!(ask("GET /files/file", b"") == ("200".to_owned(), content()));
    assert_eq!(ask("GET /files/..%2Ffile", b"").0, "404");
    assert!(ask("POST /echo", &content()[..1 << 20]).1 == content()[..1 << 20]);
    server.child.kill().expect("it runs");
    server.child.wait().expect("ends");
}

#[test]
fn a_socket_that_nobody_listens_at_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let mut sender = Command::new(env!("CARGO_BIN_EXE_send-file"));
    let output = sender.args(["/dev/null", &address]).output().expect("runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"), "{output:?}");
}

mod guest {
    use super::*;

    use handoff_lab::topology::{self, Pair};

    #[test]
    fn a_datagram_is_answered_and_comes_back() {
        topology::load("rds_tcp", &[]).expect("the guest has it");
        let pair = Pair::new(9_000).expect("two hosts");
        let [near, far] = [&pair.left, &pair.right].map(|end| format!("{}:4000", end.v4()));
        let program = env!("CARGO_BIN_EXE_exchange-datagrams");
        let mut command = Command::new(program);
        let answering = Listening::start(pair.right.namespace().attach(command.arg(&far)));
        let mut command = Command::new(program);
        let asking =
            thread::spawn(move || said(pair.left.namespace().attach(command.args([&near, &far]))));
        let told = answering.end();
        assert!(told.contains("32768 bytes from 10."), "{told}");
        let told = asking.join().expect("ends");
        assert!(told.contains("cookie 42 is back"), "{told}");
    }
}
