//! As a service of systemd: sockets that it has opened, and being told when all is ready.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use handoff_testbed::running::TIMEOUT;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::session::Server;
use crate::session::{content, directory};

/// The server as systemd starts it, with these sockets.
fn started_by_systemd(directory: &Path, sockets: &[&dyn AsFd]) -> Command {
    let mut redirections = String::new();
    for (number, socket) in sockets.iter().enumerate() {
        let socket = socket.as_fd();
        fcntl_setfd(socket, FdFlags::empty()).expect("is inherited");
        redirections.push_str(&format!(" {}<&{}", 3 + number, socket.as_raw_fd()));
    }
    let mut command = Command::new("bash");
    let script = format!("LISTEN_PID=$$ exec \"$@\" {redirections}");
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
fn what_systemd_passes_has_to_be_one_socket_that_listens() {
    let files = directory(&[]);
    let [one, other] = [0, 0].map(|_| TcpListener::bind("127.0.0.1:0").expect("binds"));
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("binds");
    for (sockets, expected) in [
        (&[&one as &dyn AsFd, &other][..], "systemd passes 2 sockets, and one is listened on"),
        (&[&datagrams], "the socket that systemd passes does not listen for TCP"),
    ] {
        let ended = started_by_systemd(files.path(), sockets).output().expect("runs");
        let line = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{line}");
        assert!(line.contains(expected) && line.lines().count() == 1, "{line}");
    }
}
