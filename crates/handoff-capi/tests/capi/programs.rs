use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{library, package, run, sources};

/// What the static library needs beside libc.
const BESIDE: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-lgcc_s"];

/// How a program is built.
#[derive(Clone, Copy)]
pub(super) struct Build {
    compiler: &'static str,
    standard: &'static [&'static str],
    sanitized: bool,
}

const C11: &[&str] = &["-std=c11", "-D_GNU_SOURCE"];
const CXX17: &[&str] = &["-std=c++17", "-x", "c++"];
/// What a reader compiles: by the command that the program's text gives, which names no standard and defines nothing.
pub(super) const AS_TOLD: Build = Build { compiler: "gcc", standard: &[], sanitized: true };
/// The same for a machine that may lack the sanitizers.
pub(super) const UNSANITIZED: Build = Build { sanitized: false, ..AS_TOLD };

fn build_and_run(build: Build) {
    let there = Command::new(build.compiler).arg("--version").output();
    if there.is_err() {
        // gcc is what everything needs; the others are welcome.
        assert_ne!(build.compiler, "gcc");
        println!("SKIPPED: no {}", build.compiler);
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("cases");
    compile(build, &cases(), &statically(), &program);
    run(&mut Command::new(&program));
}

fn compile(build: Build, sources: &[PathBuf], link: &[OsString], program: &Path) {
    let mut command = Command::new(build.compiler);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"]).args(build.standard);
    command.arg("-I").arg(package().join("include")).args(sources).args(["-x", "none"]);
    command.args(link);
    if build.sanitized {
        command.arg("-fsanitize=address,undefined");
    }
    run(command.arg("-o").arg(program));
}

/// What links a program with the static library.
fn statically() -> Vec<OsString> {
    [[library().into_os_string()].as_slice(), &BESIDE.map(OsString::from)].concat()
}

fn cases() -> Vec<PathBuf> {
    sources(&package().join("tests/c"), "c")
}

#[test]
fn the_shared_library_exports_the_interface_with_versions() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = package().join("../../scripts/libhandoff");
    run(Command::new(script).arg(library()).arg(directory.path()));

    let shared = directory.path().join("libhandoff.so");
    let symbols = Command::new("nm").args(["-D", "--defined-only"]).arg(&shared).output();
    let symbols = String::from_utf8(symbols.expect("nm runs").stdout).expect("is text");
    let exported: Vec<_> =
        symbols.lines().filter_map(|line| line.split_once(" T ").map(|(_, name)| name)).collect();
    assert!(exported.contains(&"handoff_turn@@HANDOFF_0.1"), "{symbols}");
    let header = fs::read_to_string(package().join("include/handoff.h")).expect("is there");
    for name in &exported {
        let plain = name.split('@').next().expect("has a name");
        assert!(header.contains(&format!("{plain}(")), "{name} is exported and not declared");
    }

    let program = directory.path().join("cases");
    let build = Build { compiler: "gcc", standard: C11, sanitized: false };
    let place = directory.path().as_os_str().to_owned();
    let link = ["-L".into(), place.clone(), "-lhandoff".into(), "-lpthread".into()];
    compile(build, &cases(), &link, &program);
    run(Command::new(&program).env("LD_LIBRARY_PATH", &place));
}

#[test]
fn c11_by_gcc_under_the_address_sanitizer() {
    build_and_run(Build { compiler: "gcc", standard: C11, sanitized: true });
}

#[test]
fn cxx17_by_gcc() {
    build_and_run(Build { compiler: "g++", standard: CXX17, sanitized: false });
}

#[test]
fn c11_by_clang() {
    build_and_run(Build { compiler: "clang", standard: C11, sanitized: false });
}

#[test]
fn cxx17_by_clang() {
    build_and_run(Build { compiler: "clang++", standard: CXX17, sanitized: false });
}

#[test]
fn the_program_of_the_page_sends_what_it_says() {
    let page = fs::read_to_string(package().join("../../docs/embedding.md")).expect("is there");
    let text = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("page.c");
    fs::write(&source, text.expect("the page has a program")).expect("writes");
    let program = directory.path().join("page");
    compile(AS_TOLD, &[source], &statically(), &program);

    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let port = listener.local_addr().expect("has an address").port().to_string();
    let receiver = thread::spawn(move || {
        let mut bytes = Vec::new();
        listener.accept().expect("is connected").0.read_to_end(&mut bytes).expect("reads");
        bytes
    });
    // The program ends without closing its handles, which is its right: the sanitizer is not asked for leaks.
    run(Command::new(&program).arg(port).env("ASAN_OPTIONS", "detect_leaks=0"));
    assert_eq!(receiver.join().expect("has read"), vec![7; 1 << 16]);
}

#[test]
fn the_page_quotes_the_echo_server() {
    let read =
        |path: &str| fs::read_to_string(package().join("../..").join(path)).expect("is there");
    let page = read("docs/embedding.md");
    let quoted = page.split("  ```c\n").nth(1).and_then(|rest| rest.split("  ```").next());
    let quoted: String = quoted
        .expect("the page has a function")
        .lines()
        .map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line)))
        .collect();
    assert!(quoted.lines().count() > 10, "{quoted}");
    assert!(read("examples/c/echo.c").contains(&quoted), "{quoted}");
}

#[test]
fn the_example_prints_a_file_that_is_passed() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("receive_file", AS_TOLD, directory.path());
    let socket = directory.path().join("socket");
    let mut receiver = Command::new(&program);
    receiver.arg(&socket).env("ASAN_OPTIONS", "detect_leaks=0").stdout(Stdio::piped());
    let mut receiver = Server(receiver.spawn().expect("starts"));
    let mut output = BufReader::new(receiver.0.stdout.take().expect("is piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("says where");
    let file = directory.path().join("file");
    fs::write(&file, "what is in it").expect("written");
    let driver = handoff::Driver::new().expect("a driver");
    let pass = async {
        let name = handoff::UnixAddress::path(&socket)?;
        let near = driver.connect_unix(&name, handoff::UnixKind::Seqpacket)?.await?;
        let file = fs::File::open(&file).expect("is there").into();
        let message = near.message(handoff::Buffer::from(vec![0])).give_descriptors(vec![file]);
        message.send().map_err(|refused| refused.error)?.await?.sent
    };
    driver.block_on(pass).expect("turns").expect("is passed");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("reads");
    assert_eq!(rest, "what is in it");
    assert!(!socket.exists());
}

#[test]
fn the_example_connects_with_its_options() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("connect_options", AS_TOLD, directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let port = listener.local_addr().expect("has an address").port().to_string();
    let mut command = Command::new(&program);
    let told = command.arg(port).env("ASAN_OPTIONS", "detect_leaks=0").output().expect("runs");
    let said = String::from_utf8_lossy(&told.stdout);
    assert!(said.starts_with("nodelay 1, user time-out 20000 ms, send buffer "), "{told:?}");
    let (_, peer) = listener.accept().expect("is connected");
    assert_eq!(peer.ip(), IpAddr::from([127, 0, 0, 2]));
}

#[test]
fn the_echo_server_of_the_examples_echoes() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("echo", AS_TOLD, directory.path());

    let mut server = Server(Command::new(&program).stdout(Stdio::piped()).spawn().expect("starts"));
    let port = port_of(&mut BufReader::new(server.0.stdout.take().expect("is piped")));

    let clients: Vec<_> = (0..4_u8)
        .map(|client| {
            thread::spawn(move || {
                let mut sender = TcpStream::connect(("127.0.0.1", port)).expect("connects");
                let mut receiver = sender.try_clone().expect("is cloned");
                let sent: Vec<_> = (0..1_000_000_u32).map(|at| (at / 7) as u8 ^ client).collect();
                let expected = sent.clone();
                let writer = thread::spawn(move || {
                    sender.write_all(&sent).expect("is taken");
                });
                let mut back = vec![0; expected.len()];
                receiver.read_exact(&mut back).expect("comes back");
                writer.join().expect("wrote");
                assert!(back == expected);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("had its bytes back"));
}

#[test]
fn the_echo_server_answers_each_sender_of_datagrams() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("echo", AS_TOLD, directory.path());
    for options in [&["-u"][..], &["-u", "-6"]] {
        if options.len() > 1 && !has_ipv6() {
            println!("SKIPPED: no IPv6");
            continue;
        }
        let mut server = Command::new(&program);
        let mut server =
            Server(server.args(options).stdout(Stdio::piped()).spawn().expect("starts"));
        let port = port_of(&mut BufReader::new(server.0.stdout.take().expect("is piped")));

        // The socket of IPv6 has senders of both kinds, and each kind two of its own.
        let hosts = ["127.0.0.1", "::1"].map(|host| host.parse::<IpAddr>().expect("is one"));
        let hosts = hosts.into_iter().take(options.len());
        let clients: Vec<_> = hosts
            .flat_map(|host| [host, host])
            .map(|host| {
                let client = UdpSocket::bind((host, 0)).expect("binds");
                client.connect((host, port)).expect("has an address");
                client.set_read_timeout(Some(Duration::from_secs(30))).expect("can wait");
                client
            })
            .collect();
        assert_eq!(clients.len(), 2 * options.len());
        let sent = |round: usize, client: usize| {
            // An empty one, and the longest, too; one of these at a time, since several overrun the server's buffer.
            let length = [0, 1, 1400, 65_507][(round + client) % 4];
            vec![(round * 16 + client) as u8; length]
        };
        for round in 0..40 {
            for (number, client) in clients.iter().enumerate() {
                client.send(&sent(round, number)).expect("is sent");
            }
            for (number, client) in clients.iter().enumerate() {
                let mut back = vec![0; 1 << 16];
                let length = client.recv(&mut back).expect("comes back");
                assert!(back[..length] == sent(round, number), "{options:?} {round} {number}");
            }
        }
    }
}

fn has_ipv6() -> bool {
    UdpSocket::bind("[::1]:0").is_ok()
}

/// An example, built in this way.
pub(super) fn example(name: &str, build: Build, directory: &Path) -> PathBuf {
    let program = directory.join(name);
    let source = package().join(format!("../../examples/c/{name}.c"));
    compile(build, &[source], &statically(), &program);
    program
}

#[test]
fn what_the_example_sends_its_receiver_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("send_zerocopy", AS_TOLD, directory.path());
    // Lent by a lane, and copied; in batches, by two threads; on letters that go on, with a receive that waits; at an
    // address, by a device; on huge pages, or what there is; pinned.
    let pinned = format!("-4 -v -l 1 -C {} tcp", a_processor());
    for (sender, receiver, both) in [
        ("", "", "-4 -n 3 -s 5000 tcp"),
        ("", "", "-4 -n 2 -s 70000 -T 2 -b 0 tcp"),
        ("", "", "-4 -z 0 -n 5 -s 3000 tcp"),
        ("-t 0 -y", "", "-4 -v -n 3 -s 5000 tcp"),
        ("-t 0 -y -d", "", "-4 -v -z 0 -s 3001 tcp"),
        ("-t 0 -I lo", "-D 127.0.0.1", &pinned),
        ("-t 0 -y -n 1", "", "-4 -v -s 1000 udp"),
        ("-t 0 -D ::1", "-D ::1", "-6 -v tcp"),
        ("-t 0 -D ::1", "", "-6 -n 3 udp"),
    ] {
        if both.starts_with("-6") && !has_ipv6() {
            println!("SKIPPED: no IPv6");
            continue;
        }
        let options = format!("{sender} {receiver} {both}");
        let receives = format!("-R -t 30 -p 0 {receiver} {both}");
        let mut receiver = Server(
            Command::new(&program)
                .args(receives.split_whitespace())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starts"),
        );
        let mut output = BufReader::new(receiver.0.stdout.take().expect("is piped"));
        let port = port_of(&mut output);
        // Without an address it is this host.
        let sends = format!("-t 1 -p {port} {sender} {both}");
        let sent = Command::new(&program).args(sends.split_whitespace()).output().expect("runs");
        // Datagrams have no end, and may be lost.
        let all = both.ends_with("tcp");
        if !all {
            interrupt(&receiver);
        }
        let mut received = String::new();
        output.read_to_string(&mut received).expect("reads");
        assert!(receiver.0.wait().expect("ends").success() && sent.status.success(), "{sent:?}");
        let sent = String::from_utf8(sent.stdout).expect("is text");
        assert!(bytes(&received) > 0, "{options}: {sent}");
        assert!(bytes(&sent) >= bytes(&received), "{options}: {sent}{received}");
        assert!(!all || bytes(&sent) == bytes(&received), "{options}: {sent}{received}");
    }

    // A peer that goes away is named, by either way of sending.
    for way in ["-z 1", "-z 0"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let port = listener.local_addr().expect("has an address").port();
        let goes = thread::spawn(move || drop(listener.accept().expect("is connected")));
        let sends = format!("-4 -D 127.0.0.1 -t 60 -p {port} {way} tcp");
        let sent = Command::new(&program).args(sends.split(' ')).output().expect("runs");
        goes.join().expect("is gone");
        let said = String::from_utf8_lossy(&sent.stderr);
        assert_eq!(sent.status.code(), Some(1), "{said}");
        assert!(said.contains("os error"), "{said}");
    }
}

#[test]
fn a_receiver_sees_letters_and_lengths_that_are_wrong() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("send_zerocopy", AS_TOLD, directory.path());
    let abc: Vec<_> = (0..1000).map(|at| b'a' + at as u8 % 26).collect();
    // The letters of the second message do not follow those of the first.
    for (options, messages, said) in [
        ("-v tcp", [&abc[..], &abc[..]], "wrong bytes behind"),
        ("-s 1000 udp", [&abc, b"short"], "-s says 1000"),
        ("-s 1000 udp", [&abc, &[b'x'; 1000]], "wrong bytes behind"),
    ] {
        let mut receiver = Command::new(&program);
        receiver.args(["-4", "-R", "-t", "30", "-p", "0"]).args(options.split(' '));
        receiver.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut receiver = Server(receiver.spawn().expect("starts"));
        let port = port_of(&mut BufReader::new(receiver.0.stdout.take().expect("is piped")));
        if options.ends_with("tcp") {
            let mut peer = TcpStream::connect(("127.0.0.1", port)).expect("connects");
            messages.iter().for_each(|message| peer.write_all(message).expect("is taken"));
        } else {
            let peer = UdpSocket::bind("127.0.0.1:0").expect("binds");
            for message in messages {
                peer.send_to(message, ("127.0.0.1", port)).expect("is sent");
            }
        }
        let mut text = String::new();
        let mut errors = receiver.0.stderr.take().expect("is piped");
        errors.read_to_string(&mut text).expect("is text");
        assert_eq!(receiver.0.wait().expect("ends").code(), Some(1), "{options}: {text}");
        assert!(text.contains(said), "{options}: {text}");
    }
}

#[test]
fn a_sender_that_is_interrupted_says_how_far_it_came() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("send_zerocopy", AS_TOLD, directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let port = listener.local_addr().expect("has an address").port().to_string();
    let mut sender = Command::new(&program);
    sender.args(["-4", "-t", "1000", "-p", &port, "tcp"]).stdout(Stdio::piped());
    let mut sender = Server(sender.spawn().expect("starts"));
    let mut peer = listener.accept().expect("is connected").0;
    // It has begun.
    peer.read_exact(&mut [0; 100_000]).expect("comes");
    let rest = thread::spawn(move || {
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).expect("comes to an end");
        rest.len()
    });
    interrupt(&sender);
    let mut said = String::new();
    sender.0.stdout.take().expect("is piped").read_to_string(&mut said).expect("is text");
    assert!(sender.0.wait().expect("ends").success(), "{said}");
    assert_eq!(bytes(&said), 100_000 + rest.join().expect("has read") as u64, "{said}");
}

/// A program that was run with options it can't follow: it ends at once, with one line that says why.
fn assert_refused(program: &Path, options: &str, why: &str) {
    let output = Command::new(program).args(options.split(' ')).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{options}: {said}");
    assert!(said.contains(why) && said.lines().count() == 1, "{options}: {said}");
}

/// Its usage names every option of a list as getopt(3) has it.
fn names_options(program: &Path, all: &str) {
    let output = Command::new(program).arg("--help").output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let usage = String::from_utf8(output.stdout).expect("is text");
    for option in all.chars() {
        assert!(usage.contains(&format!("-{option}")), "-{option}: {usage}");
    }
}

#[test]
fn a_sender_refuses_what_it_cannot_follow() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("send_zerocopy", AS_TOLD, directory.path());
    names_options(&program, "46DpstnzIbldCTRyv");
    for (options, why) in [
        ("-4 -n 0 tcp", "-n 0: give a number from 1 to 512"),
        ("-4 -n 513 tcp", "-n 513: give a number from 1 to 512"),
        ("-4 -t soon tcp", "-t soon: give a number"),
        ("-4 -s -1 tcp", "-s -1: give a number"),
        ("-4 -s 5k tcp", "-s 5k: give a number"),
        ("-4 -p 65536 tcp", "to 65535"),
        ("-4 -T 101 tcp", "to 100"),
        ("-4 -z yes tcp", "-z yes"),
        ("-4 -6 tcp", "one of -4 and -6"),
        ("tcp", "-4 or -6"),
        ("-4", "tcp or udp"),
        ("-4 sctp", "tcp or udp"),
        ("-4 -D localhost tcp", "no address"),
        ("-6 -D 127.0.0.1 tcp", "no address"),
        ("-4 -R -T 2 udp", "one thread"),
        ("-4 -R -I lo tcp", "-I"),
        ("-4 -R -y tcp", "-y"),
        ("-4 -s 65436 udp", "65435"),
    ] {
        assert_refused(&program, options, why);
    }
}

/// What the program says of how much it moved.
fn bytes(line: &str) -> u64 {
    let number = line.split("bytes=").nth(1).and_then(|rest| rest.split([' ', ')']).next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

/// The port that a server says it listens on.
pub(super) fn port_of(output: &mut impl BufRead) -> u16 {
    let mut line = String::new();
    output.read_line(&mut line).expect("says where it listens");
    line.trim().rsplit(' ').next().and_then(|port| port.parse().ok()).expect(&line)
}

#[test]
fn the_example_of_rx_queues_says_why_it_has_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("zcrx", AS_TOLD, directory.path());
    let output = Command::new(&program).args(["-i", "lo", "-q", "0", "-S", "1048576"]).output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("zcrx: ") && said.lines().count() == 1, "{said}");

    names_options(&program, "vpiqsrASCRc");
    for (options, why) in [
        ("-q 0", "-i INTERFACE"),
        ("-i lo", "-q QUEUE"),
        ("-i lo -q first", "-q first: give a number"),
        ("-i lo -q 0 -p 99999", "to 65535"),
        ("-i lo -q 0 -s 4294967296", "to 4294967295"),
        ("-i lo -q 0 -S 0", "-S 0"),
        ("-i lo -q 0 -C 0", "-C 0"),
        ("-i lo -q 0 -c 3", "-c 3: give a number from 0 to 2"),
        ("-i lo -q 0 -A 3", "-A 3: give a number from 0 to 2"),
        ("-i lo -q 0 -A 2", "-A 2: handoff.h has no areas of dma-bufs; take 0 or 1"),
        ("-i lo -q 0 -r 2", "-r 2: give a number from 0 to 1"),
        ("-i lo -q 0 -r 1", "take -r 0"),
        ("-i lo -q 0 -R 4096", "-S instead"),
    ] {
        assert_refused(&program, options, why);
    }
    // What can be had without a card is accepted, up to the queue.
    let accepted = "-i lo -q 0 -S 1048576 -s 5 -A 1 -C 100 -c 1 -r 0 -v";
    let output = Command::new(&program).args(accepted.split(' ')).output().expect("runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// As Ctrl-C does.
fn interrupt(program: &Server) {
    run(Command::new("kill").args(["-INT", &program.0.id().to_string()]));
}

/// A processor that this process may use.
fn a_processor() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("is there");
    let list = status.split("Cpus_allowed_list:").nth(1).expect("has a list").trim_start();
    list.chars().take_while(char::is_ascii_digit).collect()
}

/// A program that ends with the test.
pub(super) struct Server(pub(super) Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
