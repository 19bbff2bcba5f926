//! As a service of systemd: sockets that it has opened, and being told when all is ready.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use handoff_testbed::running::{Running, TIMEOUT};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::session::Server;
use crate::session::{content, directory};

/// The server as systemd starts it, with these sockets.
fn started_by_systemd(directory: &Path, sockets: &[&dyn AsFd]) -> Command {
    // First out of the way of the others' numbers.
    let (mut aside, mut redirections) = (String::new(), String::new());
    for (number, socket) in sockets.iter().enumerate() {
        let socket = socket.as_fd();
        fcntl_setfd(socket, FdFlags::empty()).expect("is inherited");
        let (place, far) = (3 + number, 200 + number);
        aside.push_str(&format!(" {far}<&{}", socket.as_raw_fd()));
        redirections.push_str(&format!(" {place}<&{far} {far}<&-"));
    }
    let mut command = Command::new("bash");
    let script = format!("exec {aside}; LISTEN_PID=$$ exec \"$@\" {redirections}");
    command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_handoff"), "serve"]).arg(directory);
    command
        .args(["--json", "--listen", "127.0.0.1:1"])
        .env("LISTEN_FDS", sockets.len().to_string());
    command
}

#[test]
fn a_socket_of_systemd_is_served_by_all_threads_and_readiness_is_told() {
    let files = directory(&[("a", 100_000)]);
    let told = UnixDatagram::bind(files.path().join(".told")).expect("binds");
    told.set_read_timeout(Some(TIMEOUT)).expect("can wait");
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("is bound");
    let mut command = started_by_systemd(files.path(), &[&listener]);
    command.args(["--threads", "3"]).env("NOTIFY_SOCKET", files.path().join(".told"));
    let server = Server::start_as(command);
    assert_eq!(server.address, address, "that of --listen is left alone");
    drop(listener);
    let mut room = [0; 256];
    let len = told.recv(&mut room).expect("is told");
    let message = std::str::from_utf8(&room[..len]).expect("text");
    let expected = format!("READY=1\nSTATUS=listening on http://{address}\n");
    assert_eq!(message.trim_end(), expected.trim_end());
    for _ in 0..20 {
        let answer = server.ask("GET /a", "");
        assert_eq!((answer.status, answer.body == content(100_000)), (200, true));
    }
    server.signal(rustix::process::Signal::TERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
}

#[test]
fn several_sockets_of_systemd_are_served() {
    let files = directory(&[("a", 100_000)]);
    let path = files.path().join(".socket");
    let [one, other] = [0, 0].map(|_| TcpListener::bind("127.0.0.1:0").expect("binds"));
    let unix = UnixListener::bind(&path).expect("binds");
    let [first, second] = [&one, &other].map(|it| it.local_addr().expect("is bound"));
    let server = Running::start(&mut started_by_systemd(files.path(), &[&one, &unix, &other]));
    let line = server.line("listening on ");
    let places = format!("http://{first} and http://{second} and unix:{}", path.display());
    assert!(line.ends_with(&places), "{line}");
    drop((one, other, unix));
    const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    let ask = |mut connection: Box<dyn ReadWrite>| {
        connection.write_all(REQUEST).expect("asks");
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).expect("is answered");
        assert!(answer.ends_with(&content(100_000)), "{} bytes", answer.len());
    };
    for address in [first, second] {
        ask(Box::new(TcpStream::connect(address).expect("connects")));
    }
    ask(Box::new(UnixStream::connect(&path).expect("connects")));
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.end().code, Some(143));
    assert!(path.exists(), "it is systemd's");
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[test]
fn a_unix_socket_is_served_beside_a_port() {
    let files = directory(&[("a", 100_000)]);
    let path = files.path().join(".socket");
    let mut command = crate::session::command(files.path(), &["--json", "--listen"]);
    command.arg(format!("unix:{}", path.display())).args(["--listen", "127.0.0.1:0"]);
    let log = files.path().join(".log");
    let server = Running::start(command.arg("--access-log").arg(&log));
    server.line("listening on http://127.0.0.1:");
    let curl = Command::new("curl").arg("--version").output();
    if curl.is_err() {
        println!("SKIPPED: no curl");
        return;
    }
    for _ in 0..3 {
        let mut asked = Command::new("curl");
        asked.args(["-sS", "--fail", "--unix-socket"]).arg(&path).arg("http://anyone/a");
        let answer = asked.output().expect("runs");
        assert!(answer.status.success() && answer.stdout == content(100_000), "{answer:?}");
    }
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.end().code, Some(143));
    let uid = rustix::process::geteuid().as_raw();
    let lines = std::fs::read_to_string(&log).expect("there");
    assert!(lines.starts_with(&format!("unix:uid={uid},pid=")), "{lines}");
    assert!(!path.exists());
}

#[test]
fn what_systemd_passes_has_to_listen() {
    let files = directory(&[]);
    let one = TcpListener::bind("127.0.0.1:0").expect("binds");
    let connected = UnixStream::pair().expect("a pair").0;
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("binds");
    for (sockets, expected) in [
        (&[&one as &dyn AsFd, &connected][..], "a socket that systemd passes does not listen"),
        (&[&datagrams], "a socket that systemd passes does not listen for TCP"),
    ] {
        let ended = started_by_systemd(files.path(), sockets).output().expect("runs");
        let line = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{line}");
        assert!(line.contains(expected) && line.lines().count() == 1, "{line}");
    }
}
