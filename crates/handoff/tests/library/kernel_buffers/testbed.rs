//! Files with known bytes, connections over software NICs, and the device that lends.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;

use handoff::{Driver, GetBuf};
use handoff_testbed::helpers::{bytes_at, eventually};
use handoff_testbed::load;
use tempfile::TempDir;

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
