//! Common parts of the tests: a device that this process serves, its files, and the machine's own commands.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;

use handoff_block::state::Record;
use handoff_block::{Control, Engine, Error, Kind, Server, Spec, Start};

pub(super) const MIB: u64 = 1 << 20;

/// Why there can be no devices here, if that is so.
pub(super) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    if !Path::new("/dev/ublk-control").exists() {
        let _ = Command::new("modprobe").arg("ublk_drv").status();
    }
    Control::open().err().map(|error| error.to_string())
}

macro_rules! driver_or_skip {
    () => {
        if let Some(reason) = super::device::missing() {
            handoff_testbed::skip!("{reason}");
        }
    };
}
pub(super) use driver_or_skip;

/// A device that is served until this is dropped, and then gone.
pub(super) struct Device {
    pub(super) id: u32,
    pub(super) engine: Engine,
    record: Record,
    serving: Option<JoinHandle<Result<(), Error>>>,
}

impl Device {
    pub(super) fn of(spec: &Spec) -> Self {
        Self::served(spec, Start::New)
    }

    /// One whose server is gone.
    pub(super) fn recovered(spec: &Spec, id: u32) -> Self {
        Self::served(spec, Start::Recover(id))
    }

    fn served(spec: &Spec, start: Start) -> Self {
        Self::by(Server::start(spec, start).unwrap_or_else(|error| panic!("{error}")))
    }

    pub(super) fn by(server: Server) -> Self {
        let (id, engine, record) = (server.id(), server.engine(), server.record().clone());
        let serving = std::thread::spawn(move || server.wait());
        Self { id, engine, record, serving: Some(serving) }
    }

    pub(super) fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.id).into()
    }

    /// Past the page cache.
    pub(super) fn open(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        options.open(self.path()).expect("the device opens")
    }

    pub(super) fn end(mut self) {
        handoff_block::remove(&self.record).expect("removed");
        let served = self.serving.take().expect("served once").join().expect("no panic");
        served.expect("served to the end");
        assert!(!self.path().exists(), "the device is gone");
        assert!(!Path::new(&format!("/run/handoff/blk/{}", self.id)).exists());
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            let _ = handoff_block::remove(&self.record);
            let _ = serving.join();
        }
    }
}

/// Files for a device, on the guest's own disk.
pub(super) struct Files {
    pub(super) directory: tempfile::TempDir,
    pub(super) paths: Vec<PathBuf>,
}

impl Files {
    pub(super) fn new(sizes: &[u64]) -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let make = |(index, size): (usize, &u64)| {
            let path = directory.path().join(format!("backing-{index}"));
            File::create(&path).and_then(|file| file.set_len(*size)).expect("a file");
            path
        };
        let paths = sizes.iter().enumerate().map(make).collect();
        Self { directory, paths }
    }

    pub(super) fn read(&self, index: usize) -> Vec<u8> {
        fs::read(&self.paths[index]).expect("a file")
    }
}

/// The device `target` of `files`.
pub(super) fn spec(target: Kind, files: &Files, engine: Engine) -> Spec {
    Spec { target, files: files.paths.clone(), engine: Some(engine), ..Spec::default() }
}

/// Memory that is aligned for O_DIRECT.
pub(super) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0; len + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start, len }
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut aligned = Self::new(bytes.len());
        aligned.bytes().copy_from_slice(bytes);
        aligned
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

pub(super) fn read_at(file: &File, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut memory = Aligned::new(len);
    file.read_exact_at(memory.bytes(), offset)?;
    Ok(memory.bytes().to_vec())
}

pub(super) fn write_at(file: &File, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all_at(Aligned::of(bytes).bytes(), offset)
}

/// A repeatable stream of numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_ne_bytes()[..word.len()]);
        }
        bytes
    }
}

/// Runs a command of the machine, which must succeed.
#[track_caller]
pub(super) fn run(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{program} {arguments:?}: {status}\n{out}{err}");
    out.into_owned()
}
