//! Files with known bytes, connections over software NICs, and the device that lends.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use handoff::{Driver, GetBuf};
use handoff_lab::topology::{Pair, load};
use tempfile::TempDir;

/// Longer than anything here takes, even under emulation.
const PATIENCE: Duration = Duration::from_secs(30);

/// A driver, and the source of its leases.
pub(crate) struct Lending {
    pub(crate) driver: Driver,
    pub(crate) getbuf: GetBuf,
}

impl Lending {
    pub(crate) fn new() -> Self {
        Self::of(Driver::builder())
    }

    pub(crate) fn of(builder: handoff::DriverBuilder) -> Self {
        load("getbuf", &[]).expect("the lab's kernel has it");
        let driver = builder.ring(handoff::RingUse::Require).build().expect("a ring");
        let getbuf = eventually("the device is there", || driver.get_buf().ok());
        Self { driver, getbuf }
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.block_on(future).expect("runs")
    }

    /// Turns the driver until no lend is out.
    pub(crate) fn until_all_are_back(&self) -> handoff::GetBufStats {
        eventually("all lends are back", || {
            self.driver.turn(handoff::Wait::No).expect("turns");
            let stats = self.getbuf.stats().expect("answers");
            (stats.out == 0 && stats.lent == stats.returned).then_some(stats)
        })
    }
}

/// Asks until there is an answer.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// The bytes of a stream or file from a position on: no short period, so misplaced parts show.
pub(crate) fn bytes_at(position: usize, count: usize) -> Vec<u8> {
    (position..position + count)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31) as u8)
        .collect()
}

/// A directory on a disk, so that files in it can be opened with `O_DIRECT`.
pub(crate) fn on_disk() -> TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory")
}

/// A file with known bytes.
pub(crate) fn filled(directory: &TempDir, len: usize) -> File {
    let path = directory.path().join("source");
    std::fs::write(&path, bytes_at(0, len)).expect("writes");
    File::open(path).expect("opens")
}

/// An empty file that bypasses the page cache.
pub(crate) fn direct(directory: &TempDir, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(directory.path().join(name))
        .expect("opens")
}

/// Two ends of a connection over loopback.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let left = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    (left, listener.accept().expect("accepts").0)
}

/// Two ends of a connection over software NICs: one in the left host, one in the right.
pub(crate) fn connection_over(pair: &Pair) -> (TcpStream, TcpStream) {
    let address = (pair.right.v4(), 4_000);
    let listener = pair.right.namespace().run(|| TcpListener::bind(address));
    let listener = listener.expect("enters").expect("binds");
    let left = pair.left.namespace().run(|| TcpStream::connect(address));
    let (right, _) = listener.accept().expect("accepts");
    (left.expect("enters").expect("connects"), right)
}

/// Has a thread read a stream to its end.
pub(crate) fn read_all(mut stream: TcpStream) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut received = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut received).expect("receives");
        received
    })
}

/// Has a thread write known bytes to a stream, and end it.
pub(crate) fn write_all(mut stream: TcpStream, len: usize) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || stream.write_all(&bytes_at(0, len)).expect("sends"))
}
