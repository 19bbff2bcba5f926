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
struct Build {
    compiler: &'static str,
    standard: &'static str,
    sanitized: bool,
}

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
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"]).arg(build.standard);
    if build.standard.contains("c++") {
        command.args(["-x", "c++"]);
    } else {
        // C++ compilers set it themselves.
        command.arg("-D_GNU_SOURCE");
    }
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
    let build = Build { compiler: "gcc", standard: "-std=c11", sanitized: false };
    let place = directory.path().as_os_str().to_owned();
    let link = ["-L".into(), place.clone(), "-lhandoff".into(), "-lpthread".into()];
    compile(build, &cases(), &link, &program);
    run(Command::new(&program).env("LD_LIBRARY_PATH", &place));
}

#[test]
fn c11_by_gcc_under_the_address_sanitizer() {
    build_and_run(Build { compiler: "gcc", standard: "-std=c11", sanitized: true });
}

#[test]
fn cxx17_by_gcc() {
    build_and_run(Build { compiler: "g++", standard: "-std=c++17", sanitized: false });
}

#[test]
fn c11_by_clang() {
    build_and_run(Build { compiler: "clang", standard: "-std=c11", sanitized: false });
}

#[test]
fn cxx17_by_clang() {
    build_and_run(Build { compiler: "clang++", standard: "-std=c++17", sanitized: false });
}

#[test]
fn the_program_of_the_page_sends_what_it_says() {
    let page = fs::read_to_string(package().join("../../docs/embedding.md")).expect("is there");
    let text = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("page.c");
    fs::write(&source, text.expect("the page has a program")).expect("writes");
    let program = directory.path().join("page");
    let build = Build { compiler: "gcc", standard: "-std=c11", sanitized: true };
    compile(build, &[source], &statically(), &program);

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
fn the_echo_server_of_the_examples_echoes() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("echo", directory.path());

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
    let program = example("echo", directory.path());
    for options in [&["-u"][..], &["-u", "-6"]] {
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

/// An example, built with the sanitizers.
fn example(name: &str, directory: &Path) -> PathBuf {
    let program = directory.join(name);
    let source = package().join(format!("../../examples/c/{name}.c"));
    let build = Build { compiler: "gcc", standard: "-std=c11", sanitized: true };
    compile(build, &[source], &statically(), &program);
    program
}

#[test]
fn what_the_example_sends_its_receiver_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("send_zerocopy", directory.path());
    // Lent by a lane, and copied; in batches, by two threads.
    for options in ["-n 3 -s 5000", "-n 2 -s 70000 -T 2 -b 0", "-z 0 -n 5 -s 3000"] {
        let receives = format!("-4 -R -t 20 -p 0 {options} tcp");
        let mut receiver = Server(
            Command::new(&program)
                .args(receives.split(' '))
                .stdout(Stdio::piped())
                .spawn()
                .expect("starts"),
        );
        let mut output = BufReader::new(receiver.0.stdout.take().expect("is piped"));
        let port = port_of(&mut output);
        let sends = format!("-4 -D 127.0.0.1 -t 1 -p {port} {options} tcp");
        let sent = Command::new(&program).args(sends.split(' ')).output().expect("runs");
        let mut received = String::new();
        output.read_to_string(&mut received).expect("reads");
        assert!(receiver.0.wait().expect("ends").success() && sent.status.success(), "{sent:?}");
        let sent = String::from_utf8(sent.stdout).expect("is text");
        assert_eq!(bytes(&sent), bytes(&received), "{options}: {sent}{received}");
        assert!(bytes(&sent) > 0, "{sent}");
    }
    assert!(!Command::new(&program).arg("-4").output().expect("runs").status.success());

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

/// What the program says of how much it moved.
fn bytes(line: &str) -> u64 {
    let number = line.split("bytes=").nth(1).and_then(|rest| rest.split([' ', ')']).next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

/// The port that a server says it listens on.
fn port_of(output: &mut impl BufRead) -> u16 {
    let mut line = String::new();
    output.read_line(&mut line).expect("says where it listens");
    line.trim().rsplit(' ').next().and_then(|port| port.parse().ok()).expect(&line)
}

#[test]
fn the_example_of_rx_queues_says_why_it_has_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("zcrx", directory.path());
    let output = Command::new(&program).args(["-i", "lo", "-q", "0", "-S", "1048576"]).output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("zcrx: ") && said.lines().count() == 1, "{said}");
}

/// A program that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
