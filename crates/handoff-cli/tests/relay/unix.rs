//! Unix sockets on either side, several places to listen at, and programs of others there.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use handoff_testbed::running::Running;
use rustix::process::Signal;

use crate::session::{ENGINES, bytes_at, echo};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["relay", "--json"]).args(arguments).stdin(Stdio::null());
    command
}

/// Answers each connection with what it sent, to its end.
fn echo_at(path: &Path) {
    let listener = UnixListener::bind(path).expect("binds");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accepts");
            thread::spawn(move || {
                let mut back = stream.try_clone().expect("clones");
                let _ = std::io::copy(&mut stream, &mut back);
                let _ = back.shutdown(Shutdown::Write);
            });
        }
    });
}

/// Sends bytes by a connection of any kind, and expects them back, to the end.
fn there_and_back(
    mut to: impl Write + Send + 'static,
    mut from: impl Read,
    end: impl FnOnce() + Send + 'static,
) {
    const LEN: usize = 3 << 20;
    let sender = thread::spawn(move || {
        to.write_all(&bytes_at(1, 0, LEN)).expect("sends");
        end();
    });
    let mut back = Vec::new();
    from.read_to_end(&mut back).expect("receives");
    sender.join().expect("ends");
    assert!(back == bytes_at(1, 0, LEN), "{} of {LEN}", back.len());
}

fn by_unix(stream: UnixStream) {
    let [to, ends] = [(); 2].map(|()| stream.try_clone().expect("clones"));
    there_and_back(to, stream, move || ends.shutdown(Shutdown::Write).expect("ends"));
}

fn by_tcp(stream: TcpStream) {
    let [to, ends] = [(); 2].map(|()| stream.try_clone().expect("clones"));
    there_and_back(to, stream, move || ends.shutdown(Shutdown::Write).expect("ends"));
}

#[test]
fn clients_of_all_places_reach_targets_of_both_families() {
    let place = tempfile::tempdir().expect("a directory");
    let [listen, target] = ["listen", "target"].map(|name| place.path().join(name));
    echo_at(&target);
    let name = format!("handoff-relay-{}", std::process::id());
    for engine in ENGINES {
        let targets = [format!("unix:{}", target.display()), format!("tcp://{}", echo())];
        for (target, threads) in targets.iter().zip(["1", "3"]) {
            let (here, abstract_name) =
                (format!("unix:{}", listen.display()), format!("unix:@{name}"));
            let arguments = [&here, target, "--listen", &abstract_name];
            let more =
                ["--listen", "tcp-listen://127.0.0.1:0", "--engine", engine, "--threads", threads];
            let relay = Running::start(&mut command(&[&arguments[..], &more].concat()));
            let line = relay.line("listening on ");
            let (tcp, rest) = line.split_once(" and ").expect("several places");
            assert_eq!(rest, format!("{here} and {abstract_name}"));
            let port = tcp.rsplit_once("tcp://").expect("an address").1;
            by_unix(UnixStream::connect(&listen).expect("connects"));
            let address = SocketAddr::from_abstract_name(&name).expect("a name");
            by_unix(UnixStream::connect_addr(&address).expect("connects"));
            by_tcp(TcpStream::connect(port).expect("connects"));
            relay.signal(Signal::TERM);
            let ended = relay.end();
            assert_eq!(ended.code, Some(143), "{ended:?}");
            let report = ended.json();
            assert_eq!((&report["connections"], &report["failed"]), (&3.into(), &0.into()));
            assert!(!listen.exists(), "the command removes its file");
        }
    }
}

#[test]
fn a_file_that_a_killed_relay_left_is_replaced_and_one_in_use_is_told() {
    let place = tempfile::tempdir().expect("a directory");
    let listen = place.path().join("listen");
    let here = format!("unix:{}", listen.display());
    let target = format!("tcp://{}", echo());
    let relay = Running::start(&mut command(&[&here, &target]));
    relay.line("listening on ");
    let second = command(&[&here, &target]).output().expect("runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("is in use") && said.lines().count() == 1, "{said}");
    drop(relay);
    assert!(listen.exists(), "it was killed");
    // The kernel closes what a ring of a killed process has a moment later.
    handoff_testbed::helpers::eventually("nobody listens any more", || {
        UnixStream::connect(&listen).is_err().then_some(())
    });
    let relay = Running::start(&mut command(&[&here, &target]));
    relay.line("listening on ");
    by_unix(UnixStream::connect(&listen).expect("connects"));
    // A target that nobody listens at.
    let gone = place.path().join("gone");
    let unreached = format!("unix:{}", gone.display());
    let [other, log] = ["other", "log"].map(|name| place.path().join(name));
    let at = format!("unix:{}", other.display());
    let arguments = [&at, &unreached, "--access-log", log.to_str().expect("text")];
    let failing = Running::start(&mut command(&arguments));
    failing.line("listening on ");
    let mut client = UnixStream::connect(&other).expect("connects");
    assert_eq!(client.read(&mut [0]).expect("ends"), 0);
    failing.line("the target can't be reached: unix:");
    failing.signal(Signal::TERM);
    assert_eq!(failing.end().json()["failed"], 1);
    let line = std::fs::read_to_string(&log).expect("there");
    let uid = rustix::process::geteuid().as_raw();
    assert!(line.starts_with(&format!("unix:uid={uid},pid={}", std::process::id())), "{line}");
}

#[test]
fn what_is_no_place_is_told() {
    let long = format!("unix:/{}", "x".repeat(108));
    for (listen, target, expected) in [
        ("unix:", "tcp://127.0.0.1:9", "path is empty"),
        ("unix:@", "tcp://127.0.0.1:9", "abstract name is empty"),
        (&long, "tcp://127.0.0.1:9", "107 bytes at most"),
        ("tcp://127.0.0.1:9", "unix:/a", "it must be tcp-listen://[addr]:port, unix:/path"),
        ("unix:@a", "tcp-listen://:9", "it must be tcp://host:port, unix:/path"),
    ] {
        let ended = command(&[listen, target]).output().expect("runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    }
    for (option, value, expected) in
        [("--nic", "lo", "--nic receives by TCP"), ("--engine", "get-buf", "Unix sockets cannot")]
    {
        let ended = command(&["unix:@a", "unix:@b", option, value]).output().expect("runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(2) && said.contains(expected), "{said}");
    }
}

/// socat as client and as server, python's sockets as server.
#[test]
fn programs_of_others_are_at_both_ends() {
    let place = tempfile::tempdir().expect("a directory");
    let [listen, target] = ["listen", "target"].map(|name| place.path().join(name));
    let there = |program: &str| {
        Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let python = "import socket,sys\n\
                  s=socket.socket(socket.AF_UNIX)\n\
                  s.bind(sys.argv[1]); s.listen()\n\
                  c=s.accept()[0]\n\
                  while b:=c.recv(65536): c.sendall(b)\n\
                  c.close()";
    let mut servers: Vec<(&str, Command)> = Vec::new();
    let mut socat = Command::new("socat");
    socat.arg(format!("UNIX-LISTEN:{}", target.display())).arg("EXEC:cat");
    servers.push(("socat", socat));
    let mut snake = Command::new("python3");
    snake.args(["-c", python]).arg(&target);
    servers.push(("python3", snake));
    for (program, mut server) in servers {
        if !there(program) || !there("socat") {
            println!("SKIPPED: no {program}, or no socat");
            continue;
        }
        let _ = std::fs::remove_file(&target);
        let mut server = server.spawn().expect("starts");
        let [here, to] = [&listen, &target].map(|path| format!("unix:{}", path.display()));
        let relay = Running::start(&mut command(&[&here, &to, "--connections", "1"]));
        relay.line("listening on ");
        handoff_testbed::helpers::eventually("the server listens", || {
            target.exists().then_some(())
        });
        let mut client = Command::new("socat");
        client.arg("-t10").arg("-").arg(format!("UNIX-CONNECT:{}", listen.display()));
        let mut client =
            client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let mut input = client.stdin.take().expect("piped");
        let sender = thread::spawn(move || input.write_all(&bytes_at(2, 0, 1 << 20)));
        let mut back = Vec::new();
        client.stdout.take().expect("piped").read_to_end(&mut back).expect("reads");
        sender.join().expect("ends").expect("is taken");
        assert!(back == bytes_at(2, 0, 1 << 20), "{program}: {} bytes", back.len());
        assert!(client.wait().expect("ends").success());
        assert_eq!(relay.end().code, Some(0));
        server.wait().expect("ends");
    }
}

#[test]
fn sockets_of_systemd_are_all_listened_on() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("passed");
    let unix = UnixListener::bind(&path).expect("binds");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = tcp.local_addr().expect("is bound");
    let mut command = Command::new("bash");
    rustix::io::fcntl_setfd(&unix, rustix::io::FdFlags::empty()).expect("is inherited");
    rustix::io::fcntl_setfd(&tcp, rustix::io::FdFlags::empty()).expect("is inherited");
    use std::os::fd::AsRawFd as _;
    // First out of the way of the others' numbers.
    let script = format!(
        "exec 200<&{} 201<&{}; LISTEN_PID=$$ exec \"$@\" 3<&200 4<&201 200<&- 201<&-",
        unix.as_raw_fd(),
        tcp.as_raw_fd()
    );
    command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_handoff"), "relay", "--json"]);
    command.args(["tcp-listen://127.0.0.1:1", &format!("tcp://{}", echo()), "--threads", "2"]);
    let relay = Running::start(command.env("LISTEN_FDS", "2").stdin(Stdio::null()));
    let line = relay.line("listening on ");
    assert!(line.ends_with(&format!("tcp://{address} and unix:{}", path.display())), "{line}");
    drop((unix, tcp));
    for _ in 0..4 {
        by_unix(UnixStream::connect(&path).expect("connects"));
        by_tcp(TcpStream::connect(address).expect("connects"));
    }
    relay.signal(Signal::TERM);
    assert_eq!(relay.end().json()["connections"], 8);
    assert!(path.exists(), "it is systemd's");
}
