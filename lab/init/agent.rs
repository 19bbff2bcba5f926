//! Runs the host's commands, one at a time, and carries their input and output.
//!
//! Contracts:
//! - a command gets three pipes, or a terminal, and a process group of its own;
//! - when it has ended, the agent kills everything that it left running, drains its output and puts
//!   [`wire::MARK`] into the kernel log; only then does the host hear of the end. So no command can
//!   disturb the next, and a kernel message counts for the command that caused it. Beside systemd, what a
//!   command left is what is in its control group: services go on;
//! - if the host asked, the message of the end says what else it left behind ([`crate::tracks`]);
//! - a thread of its own reports where the tasks stand while a command runs: whatever that thread meets
//!   in the kernel, the agent still hears the host, and can kill the command;
//! - when the host goes away, the agent returns and the machine is switched off.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::system;
use crate::tasks;
use crate::tracks::Tracks;
use crate::wire::{self, End, Start};

/// How long output may take to drain after everything was killed: a process that hangs in the
/// kernel keeps its pipes open.
const DRAIN: Duration = Duration::from_secs(5);

/// Our end of the port, shared by the threads that send.
#[derive(Clone)]
struct Port(Arc<Mutex<File>>);

impl Port {
    fn send(&self, kind: u8, body: &[u8]) -> io::Result<()> {
        let mut port = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        wire::send(&mut *port, kind, body)
    }
}

/// The command that is running, as the receiving loop sees it.
struct Running {
    group: i32,
    input: Sender<Vec<u8>>,
    terminal: Option<File>,
}

/// Which processes a command may have left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// All but process 1 and the agent.
    All,
    /// Those in the control group of commands.
    OfGroup,
}

/// The control group of commands, if other processes run beside them.
const GROUP: &str = "/sys/fs/cgroup/handoff-lab";

impl Leftovers {
    /// Makes a command start where it is found again.
    fn enclose(self, command: &mut Command) -> io::Result<()> {
        if self == Self::All {
            return Ok(());
        }
        fs::create_dir_all(GROUP)?;
        let group = File::options().write(true).open(Path::new(GROUP).join("cgroup.procs"))?;
        // SAFETY: between fork and exec only a system call is made: 0 stands for the writer.
        unsafe { command.pre_exec(move || (&group).write_all(b"0")) };
        Ok(())
    }

    fn kill(self) {
        match self {
            Self::All => system::signal(-1, system::SIGKILL),
            // Before the first command there is none.
            Self::OfGroup => drop(fs::write(Path::new(GROUP).join("cgroup.kill"), "1")),
        }
    }
}

/// Serves the host until it says off or goes away.
pub(crate) fn serve(port: File, leftovers: Leftovers) -> io::Result<()> {
    let mut receiver = port.try_clone()?;
    let port = Port(Arc::new(Mutex::new(port)));
    let release = fs::read("/proc/sys/kernel/osrelease")?;
    port.send(wire::READY, release.trim_ascii())?;

    let mut running: Option<Running> = None;
    while let Some((kind, body)) = wire::receive(&mut receiver)? {
        match kind {
            wire::RUN => {
                // The host starts a command only after the end of the one before.
                running = None;
                match Start::decode(&body).ok_or(io::ErrorKind::InvalidData.into()) {
                    Ok(start) => match launch(&start, leftovers, &port) {
                        Ok(launched) => running = Some(launched),
                        Err(error) => port.send(wire::REFUSED, refusal(&error).as_bytes())?,
                    },
                    Err(error) => return Err(error),
                }
            }
            wire::ASK_TASKS => answer(body, &port),
            wire::OFF => {
                look_for_leaks();
                break;
            }
            _ => {
                if let Some(command) = &running {
                    command.handle(kind, body);
                }
            }
        }
    }
    system::write_back();
    Ok(())
}

/// Reports where the tasks stand; the answer begins with the question's `body`.
fn answer(mut body: Vec<u8>, port: &Port) {
    let port = port.clone();
    // A guest without a thread left for it sends no answer, and continues.
    drop(thread::Builder::new().spawn(move || {
        body.extend(tasks::tell().into_bytes());
        drop(port.send(wire::TASKS, &body));
    }));
}

/// Makes a sanitizer kernel report leaked memory on its console.
fn look_for_leaks() {
    let kmemleak = Path::new("/sys/kernel/debug/kmemleak");
    if kmemleak.exists() {
        // Memory counts as leaked only when it is five seconds old and two scans did not find it.
        thread::sleep(Duration::from_secs(6));
        for _ in 0..2 {
            drop(fs::write(kmemleak, "scan"));
        }
    }
}

/// The kernel's words for an error without the number that `std` adds.
fn refusal(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

impl Running {
    fn handle(&self, kind: u8, body: Vec<u8>) {
        match kind {
            // A command that has ended reads nothing more: drop its input.
            wire::STDIN => drop(self.input.send(body)),
            wire::SIGNAL => {
                if let Ok(bytes) = <[u8; 4]>::try_from(body.as_slice()) {
                    system::signal(-self.group, i32::from_le_bytes(bytes));
                }
            }
            wire::RESIZE => {
                if let (Some(terminal), Some((rows, columns))) =
                    (&self.terminal, wire::decode_size(&body))
                {
                    drop(system::resize(terminal, rows, columns));
                }
            }
            _ => {}
        }
    }
}

fn launch(start: &Start, leftovers: Leftovers, port: &Port) -> io::Result<Running> {
    let (program, arguments) = start.arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(OsStr::from_bytes(program));
    command.args(arguments.iter().map(|argument| OsStr::from_bytes(argument)));
    command.env_clear();
    for variable in &start.environment {
        let mut halves = variable.splitn(2, |byte| *byte == b'=');
        let (name, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
    command.current_dir(OsStr::from_bytes(&start.directory));

    let with_terminal = start.terminal.is_some();
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(move || system::new_session(with_terminal)) };
    leftovers.enclose(&mut command)?;

    let before = start.tracks.then(Tracks::look);
    let (input, receiver) = mpsc::channel();
    let (done, drained) = mpsc::channel();
    let (child, terminal) = match start.terminal {
        Some((rows, columns)) => {
            let (ours, theirs) = system::terminal_pair()?;
            system::resize(&ours, rows, columns)?;
            let theirs = OwnedFd::from(theirs);
            command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
            let child = spawn(command)?;
            pump(ours.try_clone()?, wire::STDOUT, port, &done);
            feed(ours.try_clone()?, receiver, true);
            (child, Some(ours))
        }
        None => {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = spawn(command)?;
            if let Some(stdout) = child.stdout.take() {
                pump(OwnedFd::from(stdout).into(), wire::STDOUT, port, &done);
            }
            if let Some(stderr) = child.stderr.take() {
                pump(OwnedFd::from(stderr).into(), wire::STDERR, port, &done);
            }
            if let Some(stdin) = child.stdin.take() {
                feed(OwnedFd::from(stdin).into(), receiver, false);
            }
            (child, None)
        }
    };
    let group = child.id() as i32;
    let (port, number) = (port.clone(), start.number);
    thread::spawn(move || finish(child, number, before.as_ref(), leftovers, &port, done, &drained));
    Ok(Running { group, input, terminal })
}

/// Spawns, and drops the command: it holds our copies of the terminal, which would keep its
/// output from ending.
fn spawn(mut command: Command) -> io::Result<Child> {
    command.spawn()
}

/// Sends everything that comes out of `source` to the host, from a thread of its own.
fn pump(mut source: File, kind: u8, port: &Port, done: &Sender<()>) {
    let (port, done) = (port.clone(), done.clone());
    thread::spawn(move || {
        let mut bytes = vec![0; 32 << 10];
        // A terminal whose other end is closed reads as EIO, which is its end of file.
        while let Ok(count @ 1..) = source.read(&mut bytes) {
            if port.send(kind, &bytes[..count]).is_err() {
                break;
            }
        }
        drop(done);
    });
}

/// Writes what the host sends into the command's input, from a thread of its own, so that a
/// command that does not read cannot stop us from hearing the host.
fn feed(mut target: File, input: Receiver<Vec<u8>>, terminal: bool) {
    thread::spawn(move || {
        for bytes in input {
            if bytes.is_empty() {
                if !terminal {
                    return;
                }
                // End of input on a terminal is what Ctrl-D makes.
                if target.write_all(&[4]).is_err() {
                    return;
                }
            }
            if target.write_all(&bytes).is_err() {
                return;
            }
        }
    });
}

/// Waits for the end of the command and tells the host.
fn finish(
    mut child: Child,
    number: u32,
    before: Option<&Tracks>,
    leftovers: Leftovers,
    port: &Port,
    done: Sender<()>,
    drained: &Receiver<()>,
) {
    let status = child.wait().unwrap_or_else(|_| ExitStatus::from_raw(255 << 8));
    leftovers.kill();
    drop(done);
    // Disconnected as soon as the last pump has dropped its sender.
    let _ = drained.recv_timeout(DRAIN);
    let left = before.map(Tracks::left).unwrap_or_default();
    // 1 is KERN_ALERT: shown on the console at any level that the lab sets.
    drop(fs::write("/dev/kmsg", format!("<1>{}{number}\n", wire::MARK)));
    let taint = fs::read_to_string("/proc/sys/kernel/tainted")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    let end = End {
        signal: status.signal().unwrap_or(0) as u32,
        code: status.code().unwrap_or(0) as u32,
        taint,
        left,
    };
    drop(port.send(wire::EXIT, &end.encode()));
}
