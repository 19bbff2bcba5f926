//! Starting the server.

use std::fs::{self, File};
use std::ops::Deref;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use handoff::{Driver, RingUse};
use handoff_testbed::running::{Ended, Listening};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const SIZE: usize = (8 << 20) + 4096;

/// A directory on a disk, which has direct I/O.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory")
}

/// The ways that files here can go.
pub(crate) fn ways(place: &TempDir) -> &'static [&'static str] {
    let path = place.path().join("probe");
    empty(&path, 4096);
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let driver = Driver::builder().ring(RingUse::Avoid).build().expect("a driver");
    let is_direct = direct.is_ok_and(|file| driver.file(file).is_ok_and(|file| file.is_direct()));
    fs::remove_file(path).expect("is there");
    if is_direct { &["direct", "cache"] } else { &["cache"] }
}

/// Bytes of an image, with holes.
pub(crate) fn image() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    for (at, len) in [(5000, 70_000), (1 << 20, 3 << 20), (SIZE - 3, 3)] {
        bytes[at..at + len].copy_from_slice(&handoff_testbed::helpers::bytes_at(at, len));
    }
    bytes
}

/// Writes that image with its holes.
pub(crate) fn write_image(path: &Path) {
    let (file, bytes) = (File::create(path).expect("a file"), image());
    file.set_len(SIZE as u64).expect("grows");
    for (number, block) in bytes.chunks(4096).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, number as u64 * 4096).expect("writes");
        }
    }
}

pub(crate) fn empty(path: &Path, size: u64) {
    fs::write(path, [])
        .and_then(|()| File::options().write(true).open(path)?.set_len(size))
        .expect("a file");
}

pub(crate) fn command(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["nbd", "serve"]).args(options);
    command
}

/// A server under way.
pub(crate) struct Server(Listening);

impl Deref for Server {
    type Target = Listening;

    fn deref(&self) -> &Listening {
        &self.0
    }
}

impl Server {
    /// Starts on a free port of loopback.
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut command = command(&["--json", "--listen", "127.0.0.1:0"]);
        command.args(options);
        Self(Listening::start_as(command))
    }

    pub(crate) fn start_as(command: Command) -> Self {
        Self(Listening::start_as(command))
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.address)
    }

    pub(crate) fn end(self) -> Ended {
        self.0.end()
    }

    /// Its report, after SIGTERM.
    pub(crate) fn stop(self) -> Value {
        self.signal(Signal::TERM);
        let ended = self.end();
        assert_eq!(ended.code, Some(143), "{ended:?}");
        ended.json()
    }
}

/// Whether a program of other people is not here.
pub(crate) fn is_missing(program: &str) -> bool {
    let asked =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_err()
}

/// Runs one; what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("starts");
    let (out, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {out}{errors}");
    out.into_owned()
}
