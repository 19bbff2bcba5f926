//! `cargo xtask demo`: what the machine can do, the send table, a verified copy between two network
//! namespaces, and what a stock kernel in the lab adds, with the tour at the end.
//!
//! Contracts:
//! - the namespaces have no names, so they end with this process, however it ends;
//! - the files are below `target/demo`, removed at the end, also on Ctrl-C, and by the next run
//!   after a kill -9; one demo runs at a time;
//! - the demo compares the copy byte by byte itself, besides the command's own check;
//! - where the lab cannot run, the demo leaves its part out and says why.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use handoff_testbed::{Namespace, Pair};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::run;

const DIRECTORY: &str = "target/demo";
const LOCK: &str = "target/demo.lock";
const PORT: u16 = 7070;
const MTU: u32 = 9000;
const LOOK: Duration = Duration::from_millis(20);
/// How long a command may take to start, or to clean up after a signal.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Arguments of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The built command
    #[arg(long, default_value = "target/quick/handoff")]
    handoff: PathBuf,

    /// Size of the copied file in MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    size: u64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let stop = run::stop_flag().map_err(|error| format!("signal handlers: {error}"))?;
    let demo = Demo { handoff: &args.handoff, stop: &stop };
    demo.step("What this machine can do", &["doctor"])?;
    demo.step("Sending from user memory, measured", &["bench", "send", "--quick"])?;
    demo.copy(args.size << 20)?;
    demo.step_of_the_lab("A stock kernel in a guest", &["lab", "demo"])?;
    let title = "Sending measured there, in instructions, with the copy meter beside it";
    demo.step_of_the_lab(title, &["bench", "send", "--quick", "--lab"])?;
    let title = "A file through every mechanism there, and who copied it on the way";
    demo.step_of_the_lab(title, &["tour", "--lab"])?;
    println!("\nThe demo is complete.");
    Ok(ExitCode::SUCCESS)
}

struct Demo<'a> {
    handoff: &'a Path,
    stop: &'a AtomicBool,
}

impl Demo<'_> {
    /// Runs the command with its output as it is.
    fn step(&self, title: &str, arguments: &[&str]) -> Result<(), String> {
        self.announce(title, arguments);
        let mut running = Running::start(Command::new(self.handoff).args(arguments), arguments)?;
        running.finish(self.stop)
    }

    /// The same for steps that need the lab, which not every machine can run.
    fn step_of_the_lab(&self, title: &str, arguments: &[&str]) -> Result<(), String> {
        self.announce(title, arguments);
        let mut running = Running::start(Command::new(self.handoff).args(arguments), arguments)?;
        match running.ended(self.stop)?.code() {
            Some(run::NOT_POSSIBLE) => {
                println!("Left out: this machine cannot run the lab, for the reason above.");
                Ok(())
            }
            _ => running.finish(self.stop),
        }
    }

    fn copy(&self, size: u64) -> Result<(), String> {
        let pair = Pair::new(MTU).map_err(|error| format!("two namespaces: {error}"))?;
        let files = Files::new()?;
        println!("\n== {} MiB of random bytes to copy", size >> 20);
        self.fill(&files.source, size)?;

        let far = pair.right.v4();
        let listen = format!("tls-listen://{far}:{PORT}");
        let connect = format!("tls://{far}:{PORT}");
        let (source, target) = (text(&files.source), text(&files.target));
        // The receiver makes it, before it listens.
        let key = text(&Path::new(DIRECTORY).join("key"));
        let receive = ["cp", "--verify", "--key-file", &key, &listen, &target];
        let send = ["cp", "--verify", "--key-file", &key, &source, &connect];
        self.announce("A copy over TLS from one namespace to the other", &send);
        let mut receiver = self.start_in(pair.right.namespace(), &receive)?;
        receiver.await_listening(far, PORT, self.stop)?;
        let mut sender = self.start_in(pair.left.namespace(), &send)?;
        sender.finish(self.stop)?;
        receiver.finish(self.stop)?;
        compare(&files.source, &files.target)?;
        println!("Both files have the same {size} bytes.");
        Ok(())
    }

    fn start_in(&self, namespace: &Namespace, arguments: &[&str]) -> Result<Running, String> {
        let mut command = Command::new(self.handoff);
        Running::start(namespace.attach(command.args(arguments)), arguments)
    }

    fn announce(&self, title: &str, arguments: &[&str]) {
        println!("\n== {title}: handoff {}\n", arguments.join(" "));
    }

    fn fill(&self, path: &Path, size: u64) -> Result<(), String> {
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        let mut random = File::open("/dev/urandom").map_err(wrong)?;
        let mut file = File::create(path).map_err(wrong)?;
        let mut left = size;
        while left > 0 {
            stopped(self.stop)?;
            let piece = left.min(16 << 20);
            left -= io::copy(&mut (&mut random).take(piece), &mut file).map_err(wrong)?;
        }
        Ok(())
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn stopped(stop: &AtomicBool) -> Result<(), String> {
    if stop.load(Ordering::Acquire) { Err("stopped by a signal".to_owned()) } else { Ok(()) }
}

/// A started command; if dropped before its end, it is asked to end and then killed.
struct Running {
    child: Child,
    name: String,
}

impl Running {
    fn start(command: &mut Command, arguments: &[&str]) -> Result<Self, String> {
        let name = format!("handoff {}", arguments.join(" "));
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { child, name })
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|error| format!("{}: {error}", self.name))
    }

    fn ended(&mut self, stop: &AtomicBool) -> Result<ExitStatus, String> {
        loop {
            match self.poll()? {
                Some(status) => return Ok(status),
                None => stopped(stop)?,
            }
            std::thread::sleep(LOOK);
        }
    }

    fn finish(&mut self, stop: &AtomicBool) -> Result<(), String> {
        match self.ended(stop)? {
            status if status.success() => Ok(()),
            status => Err(format!("{}: {status}", self.name)),
        }
    }

    /// Waits until the command listens on a TCP port of its own namespace.
    fn await_listening(
        &mut self,
        address: Ipv4Addr,
        port: u16,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let table = format!("/proc/{}/net/tcp", self.child.id());
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            stopped(stop)?;
            if let Some(status) = self.poll()? {
                return Err(format!("{}: {status}", self.name));
            }
            if fs::read_to_string(&table).is_ok_and(|text| listens(&text, address, port)) {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("{}: does not listen", self.name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // On Ctrl-C the terminal has told the command too; a second signal would make it skip its
        // clean-up, so give it time first.
        let pid = Pid::from_child(&self.child);
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            if let Some(signal) = signal {
                // We have not waited for it yet, so the id is still its own.
                let _ = kill_process(pid, signal);
            }
            let deadline = Instant::now() + if signal.is_none() { TIMEOUT / 15 } else { TIMEOUT };
            while Instant::now() < deadline {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Whether the text of `/proc/net/tcp` has a listener on the port, at the address or at all.
fn listens(text: &str, address: Ipv4Addr, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let wanted = [address, Ipv4Addr::UNSPECIFIED]
        .map(|address| format!("{:08X}:{port:04X}", u32::from_ne_bytes(address.octets())));
    text.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default();
        wanted.iter().any(|wanted| wanted == local) && words.nth(1) == Some(LISTEN)
    })
}

/// The files of the demo, removed on drop; the lock is held meanwhile.
struct Files {
    source: PathBuf,
    target: PathBuf,
    _lock: File,
}

impl Files {
    fn new() -> Result<Self, String> {
        let wrong = |error: io::Error| format!("{DIRECTORY}: {error}");
        fs::create_dir_all("target").map_err(wrong)?;
        let lock = File::create(LOCK).map_err(wrong)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("{LOCK}: another demo is running"))?;
        // Leftovers of a killed run.
        remove();
        let directory = Path::new(DIRECTORY);
        fs::create_dir_all(directory).map_err(wrong)?;
        let (source, target) = (directory.join("source"), directory.join("target"));
        Ok(Self { source, target, _lock: lock })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        remove();
    }
}

fn remove() {
    match fs::remove_dir_all(DIRECTORY) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            eprintln!("xtask: {DIRECTORY} could not be removed: {error}");
        }
        _ => {}
    }
}

/// `Err` unless both files have the same bytes.
fn compare(a: &Path, b: &Path) -> Result<(), String> {
    let open =
        |path: &Path| File::open(path).map_err(|error| format!("{}: {error}", path.display()));
    let differ = || format!("{} and {} differ", a.display(), b.display());
    let (first, second) = (open(a)?, open(b)?);
    let len = |file: &File| file.metadata().map(|metadata| metadata.len()).ok();
    if len(&first) != len(&second) {
        return Err(differ());
    }
    let (mut first, mut second) = (BufReader::new(first), BufReader::new(second));
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let wanted = first.read(&mut left).map_err(|error| format!("{}: {error}", a.display()))?;
        if wanted == 0 {
            return Ok(());
        }
        second
            .read_exact(&mut right[..wanted])
            .map_err(|error| format!("{}: {error}", b.display()))?;
        if left[..wanted] != right[..wanted] {
            return Err(differ());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt
   0: 02004E0A:1B9E 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0
   1: 02004E0A:1B9F 01004E0A:C000 01 00000000:00000000 00:00000000 00000000     0\n";
        let far = Ipv4Addr::new(10, 78, 0, 2);
        assert!(listens(table, far, 7070));
        assert!(!listens(table, far, 7071), "connected, not listening");
        assert!(!listens(table, Ipv4Addr::new(10, 78, 0, 1), 7070));
        assert!(listens(&table.replace("02004E0A:1B9E", "00000000:1B9E"), far, 7070));
    }

    #[test]
    fn different_files_are_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).expect("writes");
            path
        };
        let long = vec![7; 3 << 20];
        let mut changed = long.clone();
        changed[(2 << 20) + 5] = 8;
        let (a, b, c) = (path("a", &long), path("b", &long), path("c", &changed));
        assert_eq!(compare(&a, &b), Ok(()));
        assert!(compare(&a, &c).is_err());
        assert!(compare(&a, &path("d", &long[1..])).is_err());
        assert!(compare(&a, &directory.path().join("none")).is_err());
    }

    #[test]
    fn a_failing_command_is_named() {
        let never = AtomicBool::new(false);
        let mut running =
            Running::start(&mut Command::new("false"), &["cp"]).expect("false starts");
        assert_eq!(running.finish(&never), Err("handoff cp: exit status: 1".to_owned()));
    }

    #[test]
    fn a_dropped_command_ends() {
        let running = Running::start(Command::new("sleep").arg("60"), &[]).expect("sleep starts");
        let pid = running.child.id();
        drop(running);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
