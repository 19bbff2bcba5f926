//! Runs the command and the machine's own.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Why there can be no devices here, if there can't.
pub(super) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let _ = Command::new("modprobe").arg("ublk_drv").status();
    (!Path::new("/dev/ublk-control").exists()).then(|| "no ublk_drv".to_owned())
}

pub(super) const ENGINES: [&str; 4] = ["bpf", "user-auto", "batch-auto", "user-copy"];

macro_rules! driver_or_skip {
    () => {
        if let Some(reason) = super::command::missing() {
            handoff_testbed::skip!("{reason}");
        }
    };
}
pub(super) use driver_or_skip;

pub(super) fn blk(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.arg("blk").args(arguments).output().expect("handoff starts")
}

/// The one line that a refusal has, with its exit code.
#[track_caller]
pub(super) fn refused(arguments: &[&str], code: i32) -> String {
    let output = blk(arguments);
    let line = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
    line
}

#[track_caller]
pub(super) fn answer(arguments: &[&str]) -> Value {
    let output = blk(&[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

/// A device that is removed when this is dropped.
pub(super) struct Added {
    pub(super) id: u64,
    pub(super) answer: Value,
}

impl Added {
    #[track_caller]
    pub(super) fn new(arguments: &[&str]) -> Self {
        let answer = answer(&[&["add"], arguments].concat());
        Self { id: answer["id"].as_u64().expect("a number"), answer }
    }

    /// One that was made otherwise, once it is served.
    pub(super) fn existing(id: u64) -> Option<Self> {
        let output = blk(&["show", &id.to_string(), "--json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        (answer["state"] == "live").then(|| Self { id, answer })
    }

    pub(super) fn node(&self) -> String {
        format!("/dev/ublkb{}", self.id)
    }

    /// What `show` says, whose exit code says whether a mirror lacks legs.
    #[track_caller]
    pub(super) fn show(&self) -> Value {
        let output = blk(&["show", &self.id.to_string(), "--json"]);
        let shown: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
        let lacks = shown["failed_legs"].as_array().expect("a list").len();
        assert_eq!(output.status.code(), Some(i32::from(lacks > 0)), "{shown}");
        shown
    }

    /// The process that serves it; waits for it to be another one than `not`.
    pub(super) fn server(&self, not: Option<i32>) -> i32 {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let show = self.show();
            let server = show["server"].as_i64().map(|pid| pid as i32);
            match server {
                Some(server) if show["state"] == "live" && Some(server) != not => return server,
                _ => {}
            }
            if Instant::now() >= deadline {
                panic!("no new server: {show}\n{}", self.standing());
            }
            // Asking takes the guest's processors from the server that begins.
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// What its processes have told, and where each of their threads stands.
    fn standing(&self) -> String {
        let log = format!("/run/handoff/blk/{}.log", self.id);
        let mut text = fs::read_to_string(log).unwrap_or_default();
        for process in fs::read_dir("/proc").expect("/proc").flatten() {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if !line.contains(" blk serve ") && !line.contains(" blk supervise ") {
                continue;
            }
            text += &format!("{} {line}\n", process.path().display());
            for thread in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten()
            {
                let of = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
                text += &format!("{} {}\n{}", thread.path().display(), of("stat"), of("stack"));
            }
        }
        text
    }

    /// Writes that it has served.
    pub(super) fn writes(&self) -> u64 {
        self.count(4)
    }

    /// Requests that wait for it, or are being served.
    pub(super) fn under_way(&self) -> u64 {
        self.count(8)
    }

    /// One of the kernel's counts of it, by its place.
    fn count(&self, place: usize) -> u64 {
        let counts = fs::read_to_string(format!("/sys/block/ublkb{}/stat", self.id));
        let counts = counts.expect("the device's counts");
        counts.split_whitespace().nth(place).expect("is there").parse().expect("a number")
    }

    /// A verifier that has begun to write.
    pub(super) fn load(&self, size: &str, seconds: u64, more: &[&str]) -> Child {
        let mut load = verifier(&self.node(), size, seconds, more);
        while self.writes() == 0 {
            assert!(load.try_wait().expect("a child").is_none(), "fio ended early");
            std::thread::sleep(Duration::from_millis(50));
        }
        load
    }

    pub(super) fn del(self) {
        answer(&["del", &self.id.to_string()]);
        assert!(!Path::new(&self.node()).exists());
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        if Path::new(&format!("/dev/ublkc{}", self.id)).exists() {
            blk(&["del", "--force", &self.id.to_string()]);
        }
    }
}

/// No device, no state, no kept map and no process is left.
#[track_caller]
pub(super) fn nothing_is_left() {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let nodes = fs::read_dir("/dev").expect("/dev").filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name();
            let name = name.to_string_lossy();
            name.starts_with("ublkb") || name.starts_with("ublkc")
        });
        let states = fs::read_dir("/run/handoff/blk").into_iter().flatten().filter(|entry| {
            entry.as_ref().expect("an entry").file_type().expect("a type").is_dir()
        });
        let pins = fs::read_dir("/sys/fs/bpf").into_iter().flatten().filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name();
            name.to_string_lossy().starts_with("handoff-blk-")
        });
        let processes = fs::read_dir("/proc").expect("/proc").filter(|entry| {
            let path = entry.as_ref().expect("an entry").path().join("cmdline");
            fs::read(path).is_ok_and(|line| {
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                line.contains(" blk serve ") || line.contains(" blk supervise ")
            })
        });
        let left = [nodes.count(), states.count(), pins.count(), processes.count()];
        if left == [0; 4] {
            return;
        }
        assert!(Instant::now() < deadline, "left: nodes, states, pins, processes {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(super) struct Files {
    pub(super) directory: tempfile::TempDir,
    pub(super) paths: Vec<PathBuf>,
}

impl Files {
    pub(super) fn new(count: usize, size: u64) -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let make = |index| {
            let path = directory.path().join(format!("backing-{index}"));
            File::create(&path).and_then(|file| file.set_len(size)).expect("a file");
            path
        };
        let paths = (0..count).map(make).collect();
        Self { directory, paths }
    }

    pub(super) fn name(&self, index: usize) -> &str {
        self.paths[index].to_str().expect("UTF-8")
    }
}

/// fio, which writes what it can check, and checks it.
pub(super) fn verifier(node: &str, size: &str, seconds: u64, more: &[&str]) -> Child {
    let mut command = Command::new("fio");
    command.args([
        "--name=verify",
        // It would write to a file of the device's name once that is gone.
        "--allow_file_create=0",
        "--ioengine=libaio",
        "--direct=1",
        "--rw=randrw",
        "--rwmixwrite=60",
        "--bsrange=4k-256k",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_backlog=64",
        "--verify_fatal=1",
        "--time_based",
        "--norandommap=0",
    ]);
    command.arg(format!("--filename={node}")).arg(format!("--size={size}"));
    command.arg(format!("--runtime={seconds}")).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fio starts")
}

#[track_caller]
pub(super) fn verified(child: Child) {
    let output = child.wait_with_output().expect("fio ends");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
}

/// One block past the page cache.
pub(super) fn write_block(node: &str, byte: u8, number: u64) -> io::Result<()> {
    let block = Block([byte; 4096]);
    let options = fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(node);
    options.expect("opens").write_all_at(&block.0, number * 4096)
}

pub(super) fn read_block(node: &str, number: u64) -> io::Result<[u8; 4096]> {
    let mut block = Block([0xee; 4096]);
    let options = fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(node);
    options.expect("opens").read_exact_at(&mut block.0, number * 4096)?;
    Ok(block.0)
}

#[repr(C, align(4096))]
struct Block([u8; 4096]);

pub(super) fn tell(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("told");
}

pub(super) fn kill(pid: i32) {
    tell(pid, Signal::KILL);
}

pub(super) fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let after_name = stat.rsplit(") ").next().expect("fields");
    after_name.split(' ').nth(1).expect("its parent").parse().expect("a number")
}
