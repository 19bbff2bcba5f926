//! Other people's clients at our server, and our client at their servers.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use handoff_nbd::client::Wish;
use handoff_nbd::wire::{Framing, Session};
use handoff_testbed::skip;

#[allow(dead_code, reason = "its main is for the command line")]
#[path = "../../examples/read_export.rs"]
mod read_export;
#[allow(dead_code, reason = "its main is for the command line")]
#[path = "../../examples/serve_memory.rs"]
mod serve_memory;

const SIZE: usize = 8 << 20;

fn is_missing(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    asked.is_err()
}

/// A file with data and holes.
fn source(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    for (at, len) in [(5000, 70_000), (1 << 20, 1 << 20), (SIZE - 3, 3)] {
        bytes[at..][..len]
            .iter_mut()
            .zip(1_u32..)
            .for_each(|(byte, n)| *byte = (n * 7 % 251) as u8);
    }
    fs::write(path, &bytes).expect("writes");
    bytes
}

/// Our server on a socket, for as long as the test runs.
fn serve(socket: &Path) -> Arc<serve_memory::Disk> {
    let disk: Arc<serve_memory::Disk> = Arc::new(Mutex::new(vec![0; SIZE]));
    let listener = UnixListener::bind(socket).expect("a socket");
    let served = disk.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let disk = served.clone();
            // A client may leave without a word.
            thread::spawn(move || drop(serve_memory::serve(&mut stream.expect("a client"), &disk)));
        }
    });
    disk
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output().expect("starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    output
}

#[test]
fn libnbd_copies_both_ways_and_sees_the_holes() {
    if let Some(program) = ["nbdinfo", "nbdcopy"].into_iter().find(|program| is_missing(program)) {
        skip!("{program} is not installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let bytes = source(path("source").as_ref());
    let disk = serve(path("socket").as_ref());
    let uri = format!("nbd+unix:///?socket={}", path("socket"));
    run("nbdcopy", &[&path("source"), &uri]);
    assert!(*disk.lock().expect("no thread panicked") == bytes);
    run("nbdcopy", &[&uri, &path("copy")]);
    assert!(fs::read(path("copy")).expect("reads") == bytes);
    let map = run("nbdinfo", &["--map", "--totals", &uri]);
    let map = String::from_utf8_lossy(&map.stdout).into_owned();
    assert!(map.contains("hole,zero") && map.contains("data"), "{map}");
    let info = run("nbdinfo", &["--json", "--no-content", &uri]);
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    for fact in [
        "\"structured\": true",
        "\"export-name\": \"memory\"",
        "\"description\": \"a disk in memory\"",
        "\"base:allocation\"",
        "\"can_df\": true",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(info.contains(fact), "{fact} is not in {info}");
    }
    let list = run("nbdinfo", &["--list", "--no-content", &uri]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("export=\"memory\":"));
    let wrong = format!("nbd+unix:///wrong?socket={}", path("socket"));
    let wrong = Command::new("nbdinfo").arg(wrong).output().expect("starts");
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(error.contains("No such file or directory for export: wrong"), "{error}");
}

#[test]
fn qemu_converts_and_compares() {
    if is_missing("qemu-img") {
        skip!("qemu-img is not installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let bytes = source(path("source").as_ref());
    let disk = serve(path("socket").as_ref());
    let uri = format!("nbd+unix:///memory?socket={}", path("socket"));
    let raw = ["-f", "raw"];
    run(
        "qemu-img",
        &[&["convert", "-n"], &raw[..], &["-O", "raw", &path("source"), &uri]].concat(),
    );
    assert!(*disk.lock().expect("no thread panicked") == bytes);
    run("qemu-img", &[&["compare"], &raw[..], &["-F", "raw", &path("source"), &uri]].concat());
    let bench = ["bench", "-w", "-c", "200", "-d", "16", "-s", "4096", "--pattern", "9"];
    run("qemu-img", &[&bench[..], &raw, &[&uri]].concat());
    let written = disk.lock().expect("no thread panicked")[..200 * 4096].to_vec();
    assert!(written.iter().all(|byte| *byte == 9));
}

/// A server that ends with the test.
struct Server(Child);

impl Server {
    fn start(program: &str, socket: &str, arguments: &[&str]) -> (Self, UnixStream) {
        let server = Command::new(program).args(arguments).spawn().expect("starts");
        let server = Self(server);
        let begin = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return (server, stream),
                Err(error) if begin.elapsed() > Duration::from_secs(30) => panic!("{error}"),
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What our client reads, by which headers, and how much was told as zeroes.
fn read(mut stream: UnixStream, export: &str) -> (Vec<u8>, Framing, u64) {
    let session = Some(Session { token: 1, turn: 1 });
    let wish = Wish { session, ..Wish::export(export) };
    let agreed = read_export::negotiate(&mut stream, wish).expect("is agreed");
    assert_eq!(agreed.instance, None, "others do not know what a session is");
    let mut bytes = vec![0; agreed.target.size as usize];
    let write = |part: &[u8], at: u64| {
        bytes[at as usize..][..part.len()].copy_from_slice(part);
        Ok(())
    };
    let zeroes = read_export::read_all(&mut stream, &agreed, write).expect("is read");
    (bytes, agreed.target.framing, zeroes)
}

#[test]
fn our_client_reads_from_nbdkit() {
    if is_missing("nbdkit") {
        skip!("nbdkit is not installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let bytes = source(path("source").as_ref());
    let (file, socket) = (path("source"), path("socket"));
    let strict = [
        "--filter=blocksize-policy",
        "blocksize-minimum=512",
        "blocksize-preferred=4096",
        "blocksize-maximum=65536",
        "blocksize-error-policy=error",
    ];
    let cases: [(&[&str], Framing); 4] = [
        (&[], Framing::Structured),
        (&strict, Framing::Structured),
        (&["--no-sr"], Framing::Simple),
        // Without fixed newstyle.
        (&["--mask-handshake=0"], Framing::Simple),
    ];
    for (options, headers) in cases {
        let arguments = [&["-f", "-U", &socket, "file", &file], options].concat();
        let (_server, stream) = Server::start("nbdkit", &socket, &arguments);
        let (copy, framing, _) = read(stream, "");
        assert!(copy == bytes, "{options:?}");
        assert_eq!(framing, headers, "{options:?}");
        fs::remove_file(&socket).expect("is there");
    }
    let failing = ["--filter=error", "memory", "1M", "error-pread=ENOSPC", "error-rate=100%"];
    let arguments = [&["-f", "-U", &socket], &failing[..]].concat();
    let (_server, mut stream) = Server::start("nbdkit", &socket, &arguments);
    let agreed = read_export::negotiate(&mut stream, Wish::export("")).expect("is agreed");
    let error = read_export::read_all(&mut stream, &agreed, |_, _| Ok(())).expect_err("fails");
    assert!(error.to_string().contains("error 28"), "{error}");
}

#[test]
fn our_client_reads_from_qemu_with_its_holes() {
    if is_missing("qemu-nbd") {
        skip!("qemu-nbd is not installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let bytes = source(path("source").as_ref());
    let (file, socket) = (path("sparse"), path("socket"));
    let copied = Command::new("cp").args(["--sparse=always", &path("source"), &file]).status();
    assert!(copied.expect("starts").success());
    let arguments = ["--persistent", "-r", "-f", "raw", "-x", "disk", "-k", &socket, &file];
    let (_server, stream) = Server::start("qemu-nbd", &socket, &arguments);
    let (copy, framing, zeroes) = read(stream, "disk");
    assert!(copy == bytes);
    assert_eq!(framing, Framing::Structured);
    assert!(zeroes > 1 << 20, "{zeroes} of the holes were told as such");
    let mut stream = UnixStream::connect(&socket).expect("a second client");
    let error = read_export::negotiate(&mut stream, Wish::export("other")).expect_err("no such");
    assert!(error.to_string().contains("there is no such export"), "{error}");
}
