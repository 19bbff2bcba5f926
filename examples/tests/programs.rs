//! The examples do what they say.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use socket2::{Domain, Socket, Type};

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

    /// Its further output.
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
    let mut programs = vec![env!("CARGO_BIN_EXE_send-memory"), env!("CARGO_BIN_EXE_lend-arena")];
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
fn memory_goes_over_tls_to_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    fs::write(path("certificate"), made.cert.pem()).expect("written");
    fs::write(path("key"), made.signing_key.serialize_pem()).expect("written");
    fs::write(path("source"), content()).expect("written");
    let mut receiver = Command::new(env!("CARGO_BIN_EXE_receive-tls"));
    receiver.arg("127.0.0.1:0").args([path("certificate"), path("key"), path("target")]);
    let receiver = Listening::start(&mut receiver);
    let mut sender = Command::new(env!("CARGO_BIN_EXE_send-tls"));
    sender.args([&receiver.address, "localhost"]).arg(path("certificate"));
    sender.stdin(fs::File::open(path("source")).expect("there"));
    assert!(said(&mut sender).starts_with(&format!("{BYTES} bytes by ")));
    assert!(receiver.end().starts_with("received, and deciphered by "));
    assert!(fs::read(path("target")).expect("there") == content(), "what arrived differs");
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
    let (mut packet, mut seen) = ([0; 2000], [false; PACKETS as usize]);
    // Datagrams may overtake each other.
    for _ in 0..PACKETS {
        assert_eq!(far.recv(&mut packet).expect("all are there"), 1200);
        let (number, rest) = packet[..1200].split_first_chunk().expect("begins with its number");
        let number = u64::from_be_bytes(*number);
        assert!(rest.iter().all(|byte| *byte == number as u8));
        assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came twice");
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

/// A message of blocks whose numbers differ from block to block.
fn message(first: u64, count: u32) -> (Vec<u8>, Vec<u8>) {
    let mut header = first.to_le_bytes().to_vec();
    header.extend(count.to_le_bytes());
    header.extend([0; 4]);
    let words = (0..u64::from(count) * 512).flat_map(|word| (first * 512 + word).to_le_bytes());
    (header, words.collect())
}

/// Sends blocks to a block server, and returns what the disk must then have, from its beginning.
fn send_blocks(mut client: TcpStream) -> Vec<u8> {
    let mut disk = vec![0; 100 * 4096];
    for (first, count) in [(0, 1), (7, 16), (40, 3), (99, 1), (23, 16), (8, 2)] {
        let (header, blocks) = message(first, count);
        client.write_all(&header).expect("sent");
        client.write_all(&blocks).expect("sent");
        let mut answer = [0; 16];
        client.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer[..], header);
        let begin = first as usize * 4096;
        disk[begin..begin + blocks.len()].copy_from_slice(&blocks);
    }
    disk
}

#[test]
fn blocks_behind_headers_go_to_a_file() {
    // A place on a disk: a file system in memory may know no O_DIRECT.
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("disk");
    fs::write(&path, [0; 100 * 4096]).expect("written");
    let program = env!("CARGO_BIN_EXE_store-blocks");
    let server = Listening::start(Command::new(program).arg("127.0.0.1:0").arg(&path));
    let disk = send_blocks(TcpStream::connect(&server.address).expect("connects"));
    let said = server.end();
    assert!(said.starts_with("39 blocks by "), "{said}");
    assert!(fs::read(&path).expect("there") == disk, "what is on the disk differs");
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
    // Bound, so that it is nobody else's, and not listened on.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let address = held.local_addr().expect("bound").as_socket().expect("IPv4").to_string();
    let mut sender = Command::new(env!("CARGO_BIN_EXE_send-file"));
    let output = sender.args(["/dev/null", &address]).output().expect("runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"), "{output:?}");
}

mod guest {
    use handoff_testbed::{self, Pair};

    use super::*;

    /// Two hosts joined by software NICs; queue 3 of the receiving NIC gets what comes to port 4003.
    fn wired() -> Pair {
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        let device = pair.right.device();
        for setting in
            ["-G DEVICE tcp-data-split on", "-N DEVICE flow-type tcp4 dst-port 4003 action 3"]
        {
            let mut ethtool = Command::new("ethtool");
            ethtool.args(setting.replace("DEVICE", device).split(' '));
            said(pair.right.namespace().attach(&mut ethtool));
        }
        pair
    }

    fn connect(pair: &Pair) -> TcpStream {
        let address = (pair.right.v4(), 4003);
        let connected = pair.left.namespace().run(|| TcpStream::connect(address));
        connected.expect("enters").expect("it listens")
    }

    #[test]
    fn blocks_go_from_the_nic_to_a_disk_and_nobody_copies() {
        const DISK: &str = "/dev/disk/by-id/nvme-tests";
        let pair = wired();
        fs::OpenOptions::new()
            .write(true)
            .open(DISK)
            .and_then(|mut disk| disk.write_all(&[0; 100 * 4096]).and_then(|()| disk.sync_all()))
            .expect("the guest has the disk");
        let mut command = Command::new(env!("CARGO_BIN_EXE_store-blocks"));
        command.args([&format!("{}:4003", pair.right.v4()), DISK, pair.right.device(), "3"]);
        let server = Listening::start(pair.right.namespace().attach(&mut command));
        let disk = send_blocks(connect(&pair));
        let said = server.end();
        assert_eq!(said, "39 blocks by zcrx: 0 bytes copied to memory, 0 in it\n");
        let mut there = vec![0; disk.len()];
        fs::File::open(DISK).and_then(|mut file| file.read_exact(&mut there)).expect("read");
        assert!(there == disk, "what is on the disk differs");
    }

    #[test]
    fn a_nic_receives_into_memory_that_another_process_reads() {
        let pair = wired();
        let directory = tempfile::tempdir().expect("a directory");
        let seen = directory.path().join("seen");
        let mut command = Command::new(env!("CARGO_BIN_EXE_memory-of-others"));
        command.arg(format!("{}:4003", pair.right.v4())).arg(&seen);
        command.args([pair.right.device(), "3"]);
        let receiver = Listening::start(pair.right.namespace().attach(&mut command));
        connect(&pair).write_all(&content()).expect("sent");
        let said = receiver.end();
        let tally = handoff::Tally { zero_copy: BYTES as u64, ..handoff::Tally::default() };
        assert_eq!(said, format!("received by zcrx-dmabuf: {tally:?}\n"));
        assert!(fs::read(&seen).expect("there") == content(), "what was seen differs");
    }

    #[test]
    fn a_datagram_is_answered_and_comes_back() {
        handoff_testbed::load("rds_tcp", &[]).expect("the guest has it");
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

#[test]
fn an_open_file_is_passed_to_another_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let [source, socket] = ["source", "socket"].map(|name| directory.path().join(name));
    fs::write(&source, "what is in it").expect("written");
    let abstract_name = format!("unix:@handoff-example-{}", std::process::id());
    for name in [format!("unix:{}", socket.display()), abstract_name] {
        let program = env!("CARGO_BIN_EXE_pass-file");
        let receiver = Listening::start(Command::new(program).arg(&name));
        assert_eq!(receiver.address, name);
        said(Command::new(program).arg(&name).arg(&source));
        let got = receiver.end();
        assert!(got.ends_with(" bytes\nwhat is in it"), "{got}");
    }
    assert!(!socket.exists());
}

#[test]
fn spans_go_to_threads_and_their_memory_comes_back() {
    let program = env!("CARGO_BIN_EXE_spans-to-threads");
    let receiver = Listening::start(Command::new(program).arg("127.0.0.1:0"));
    TcpStream::connect(&receiver.address).expect("connects").write_all(&content()).expect("sends");
    let sum: u64 = content().iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(receiver.end(), format!("{BYTES} bytes received, and their sum is {sum}\n"));
}

#[test]
fn a_connection_has_its_options_and_its_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let target = listener.local_addr().expect("has one").to_string();
    let reader = thread::spawn(move || {
        let (mut stream, peer) = listener.accept().expect("accepts");
        let mut got = String::new();
        stream.read_to_string(&mut got).expect("reads");
        (got, peer.ip().to_string())
    });
    let said =
        said(Command::new(env!("CARGO_BIN_EXE_socket-options")).args([&target, "127.0.0.7"]));
    assert_eq!(reader.join().expect("ends"), ("hello\n".to_owned(), "127.0.0.7".to_owned()));
    assert!(said.contains("from 127.0.0.7:") && said.contains("user_timeout: Some(20s)"), "{said}");
}
