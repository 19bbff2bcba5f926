//! Bad input: one clear line, the right exit code, nothing left behind.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use handoff_testbed::Namespace;
use handoff_testbed::running::Running;
use handoff_testbed::{skip, topology_or_skip};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};
use socket2::{Domain, Socket, Type};

use crate::session::{cp, names, path, pattern, run, transfer};

#[test]
fn addresses_and_options_that_make_no_sense() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "bytes").unwrap();
    let (file, copy) = (path(&file), directory.path().join("copy"));
    let copy = path(&copy);
    for (args, words) in [
        (&[file, "udp://127.0.0.1:1"][..], "unknown scheme"),
        (&[file, "tcp://127.0.0.1:65536"], "above 65535"),
        (&[file, "tcp://127.0.0.1"], "port is missing"),
        (&[file, "tcp://127.0.0.1:"], "port is missing"),
        (&[file, "tcp://127.0.0.1:0"], "port 0"),
        (&[file, "tcp://::1:80"], "brackets"),
        (&["", copy], "empty path"),
        (&["-4", file, "tcp://[::1]:1"], "no IPv4 address"),
        (&["-6", file, "tcp://127.0.0.1:1"], "no IPv6 address"),
        (&["-6", file, "tcp-listen://127.0.0.1:1"], "no IPv6 address"),
        (&[path(directory.path()), copy], "is a directory"),
        (&[file, path(directory.path())], "is a directory"),
        (&["tcp://127.0.0.1:1", "tcp-listen://127.0.0.1:1"], "one of SRC and DST"),
        (&["--raw", file, copy], "needs a connection"),
        (&["--buffer", "64m", "--depth", "1024", file, copy], "bytes of memory"),
        (&["--raw", "--streams", "2", file, "tcp://127.0.0.1:1"], "--raw"),
        (&["--threads", "2", file, "tcp://127.0.0.1:1"], "--threads needs a connection as SRC"),
        (&["--threads", "2", "tcp://127.0.0.1:1", copy], "each thread needs a stream"),
        (&["--raw", "--threads", "2", "tcp-listen://:0", copy], "each thread needs a stream"),
        (&["--nic", "lo", "--queues", "2", "tcp://127.0.0.1:1", copy], "each queue needs a stream"),
        (
            &["--nic", "lo", "--queues", "2", "--threads", "1", "tcp-listen://:0", copy],
            "--queues is above --threads",
        ),
        (&["--threads", "2", "rds://127.0.0.1:4000", copy], "there is no --threads"),
    ] {
        run(args).says(2, words);
    }
    // Those that the definition of the command line refuses come with a hint in more lines.
    for args in [
        &[file][..],
        &["--streams", "0", file, copy],
        &["--streams", "257", file, copy],
        &["--buffer", "1", file, copy],
        &["--depth", "0", file, copy],
        &["--threads", "0", "tcp-listen://:0", copy],
        &["--queues", "2", "tcp-listen://:0", copy],
        &["--engine", "teleport", file, copy],
        &["--connect-timeout", "0", file, copy],
        &["-4", "-6", file, copy],
        &["--no-such-flag", file, copy],
    ] {
        let ended = run(args);
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
    }
    assert_eq!(names(directory.path()), ["file"]);
}

#[test]
fn what_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let copy = path(&copy);
    run(&["/no/such/file", copy]).says(1, "/no/such/file: No such file");
    run(&["/proc/version", "/no/such/directory/copy"]).says(1, "/no/such/directory: No such file");
    // Bound, so that it is nobody else's, and not listened on.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let closed = format!("tcp://{}", held.local_addr().unwrap().as_socket().unwrap());
    run(&["/proc/version", &closed]).says(1, "Connection refused");
    run(&[&closed, copy]).says(1, "Connection refused");
    run(&["tcp-listen://192.0.2.1:0", copy]).says(1, "Cannot assign requested address");
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = format!("tcp-listen://{}", busy.local_addr().unwrap());
    run(&[&busy, copy]).says(1, "Address already in use");
    assert!(names(directory.path()).is_empty());
}

#[test]
fn an_address_that_is_taken_for_a_file_is_pointed_out() {
    let directory = tempfile::tempdir().unwrap();
    for (name, is_address) in [("192.0.2.7:7001", true), ("a:7001", false), ("192.0.2.7", false)] {
        let mut copy = cp(&["/proc/version", name]);
        let ended = Running::start(copy.current_dir(directory.path())).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let hint = format!("an address is tcp://{name}");
        assert_eq!(ended.stderr.contains(&hint), is_address, "{ended:?}");
    }
    run(&["/proc/version", "tcp://[fe80::1]:9"])
        .says(2, "name the interface, as in [fe80::1%eth0]");
}

#[test]
fn needs_root_an_unknown_host() {
    // In a namespace without a way out, so that nobody outside is asked.
    let namespace = topology_or_skip!(Namespace::new());
    let mut command = cp(&["/proc/version", "tcp://no-such-host.invalid:1"]);
    Running::start(namespace.attach(&mut command))
        .end()
        .says(1, "unknown host \"no-such-host.invalid\"");
}

#[test]
fn a_peer_that_says_nothing_is_given_up_on() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", silent.local_addr().unwrap());
    run(&["--connect-timeout", "3", "/proc/version", &address]).says(1, "--raw");
}

#[test]
fn two_senders_or_two_receivers_and_the_listener_waits_for_another() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let version = "/proc/version";
    let sender = Running::start(&mut cp(&[version, "tcp-listen://127.0.0.1:0"]));
    let address = sender.address();
    run(&[version, &address]).says(2, "both sides send");
    assert!(sender.line("turned a connection").contains("both sides send"));
    assert_eq!(run(&[&address, path(&copy)]).code, Some(0));
    assert_eq!(sender.end().code, Some(0));
    let receiver = Running::start(&mut cp(&["-f", "tcp-listen://127.0.0.1:0", path(&copy)]));
    let address = receiver.address();
    run(&[&address, "/dev/null"]).says(2, "both sides receive");
    assert_eq!(run(&[version, &address]).code, Some(0));
    assert_eq!(receiver.end().code, Some(0));
}

#[test]
fn several_streams_into_a_pipe() {
    let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", "-"]));
    let sender = run(&["--streams", "2", "/proc/version", &receiver.address()]);
    sender.says(
        1,
        "the receiver failed: the pipe takes its bytes in order, and so one stream, not 2",
    );
    receiver.end().says(1, "--streams 1");
}

/// Somebody without privileges, with little memory to lock.
fn as_nobody(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.uid(65534).gid(65534).pre_exec(|| {
            let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
            rustix::process::setrlimit(rustix::process::Resource::Memlock, limit)?;
            Ok(())
        })
    }
}

/// A directory that anybody may write to, and the command where anybody may run it.
pub(crate) fn for_nobody() -> Option<(tempfile::TempDir, std::path::PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let program = directory.path().join("handoff");
    if fs::hard_link(env!("CARGO_BIN_EXE_handoff"), &program).is_err() {
        fs::copy(env!("CARGO_BIN_EXE_handoff"), &program).unwrap();
    }
    Some((directory, program))
}

pub(crate) fn nobodys(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("cp").args(args).stdin(std::process::Stdio::null());
    as_nobody(&mut command);
    command
}

#[test]
fn needs_root_a_user_without_privileges() {
    let Some((directory, program)) = for_nobody() else { skip!("only root becomes another user") };
    let (secret, source) = (directory.path().join("secret"), directory.path().join("source"));
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    fs::write(&source, pattern(3_000_000)).unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o644)).unwrap();
    let copy = directory.path().join("copy");
    let refused = Running::start(&mut nobodys(&program, &[path(&secret), path(&copy)])).end();
    refused.says(1, "secret: Permission denied");

    for engine in ["auto", "copy"] {
        let mut receiver = nobodys(&program, &["-f", "tcp-listen://127.0.0.1:0", path(&copy)]);
        let receiver = Running::start(&mut receiver);
        let address = receiver.address();
        let args = ["--json", "--verify", "--engine", engine, path(&source), &address];
        let report = Running::start(&mut nobodys(&program, &args)).end().report();
        assert_eq!(receiver.end().code, Some(0));
        assert!(fs::read(&copy).unwrap() == pattern(3_000_000));
        // Whoever shares a limit that small is told, and served.
        let notes = report["notes"].to_string();
        assert!(notes.contains("RLIMIT_MEMLOCK"), "{notes}");
        assert!(notes.contains("this process has"), "{notes}");
    }
}

/// A kernel that refuses a system call, always or with such arguments.
pub(crate) fn refusing(
    command: &mut Command,
    call: i64,
    arguments: Vec<SeccompRule>,
    errno: u32,
) -> &mut Command {
    let filter: BpfProgram = SeccompFilter::new(
        [(call, arguments)].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        std::env::consts::ARCH.try_into().expect("a known architecture"),
    )
    .expect("a valid filter")
    .try_into()
    .expect("compiles");
    // SAFETY: between fork and exec only system calls are made; the program is compiled already.
    unsafe {
        command.pre_exec(move || {
            seccompiler::apply_filter(&filter)
                .map_err(|_| std::io::ErrorKind::PermissionDenied.into())
        })
    }
}

/// A filter as container runtimes set it.
pub(crate) fn without_io_uring(command: &mut Command) -> &mut Command {
    refusing(command, libc::SYS_io_uring_setup, Vec::new(), libc::EPERM as u32)
}

#[test]
fn without_io_uring_system_calls_serve_and_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(5_000_001)).unwrap();
    for (engine, streams) in [("auto", "1"), ("copy", "4"), ("msg-zerocopy", "4")] {
        let mut receiver = cp(&["--json", "-f", "tcp-listen://127.0.0.1:0", path(&copy)]);
        let receiver = Running::start(without_io_uring(&mut receiver));
        let address = receiver.address();
        let mut sender = cp(&["--json", "--verify", "--engine", engine, "--streams", streams]);
        sender.args([path(&source), &address]);
        let sent = Running::start(without_io_uring(&mut sender)).end();
        let (sent_report, received) = (sent.report(), receiver.end().report());
        assert!(fs::read(&copy).unwrap() == pattern(5_000_001));
        assert!(sent.stderr.contains("plain system calls instead of io_uring"), "{}", sent.stderr);
        for (report, names) in [(&sent_report, ["read", engine]), (&received, ["epoll", "write"])] {
            assert!(report["notes"][0].as_str().unwrap().contains("seccomp"), "{report}");
            for (hop, name) in report["hops"].as_array().unwrap().iter().zip(names) {
                assert!(name == "auto" || hop["engine"] == name, "{hop}");
            }
        }
    }
    // Pipes, and an engine that needs the ring.
    let mut piped = cp(&["-", "-"]);
    piped.stdin(fs::File::open(&source).unwrap());
    let piped = Running::start(without_io_uring(&mut piped)).end();
    assert!(piped.code == Some(0) && piped.stdout == pattern(5_000_001));
    let receiver = Running::start(&mut cp(&["-f", "tcp-listen://127.0.0.1:0", path(&copy)]));
    let mut sender = cp(&["--engine", "uring-zc", path(&source), &receiver.address()]);
    let refused = Running::start(without_io_uring(&mut sender)).end();
    refused.says(3, "the uring-zc engine is not possible here");
    assert_eq!(receiver.end().code, Some(1));
}

#[test]
fn a_name_that_is_taken_meanwhile_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(1_000_000)).unwrap();
    let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", path(&copy)]));
    let address = receiver.address();
    fs::write(&copy, "mine").unwrap();
    let sender = run(&[path(&source), &address]);
    sender.says(1, "the receiver failed: ");
    receiver.end().says(1, "exists");
    assert_eq!(fs::read(&copy).unwrap(), b"mine");
    fs::remove_file(&copy).unwrap();
    let (receiver, sender) = transfer(None, "127.0.0.1", &source, &copy, &[], &[]);
    assert_eq!((receiver.code, sender.code), (Some(0), Some(0)));
}
