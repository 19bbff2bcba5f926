//! Runs the machine's programs that the lab needs.
//!
//! Contracts:
//! - a missing program is [`Error::NotPossible`] with the Debian package that has it;
//! - a failed program is reported with the last lines that it wrote;
//! - when the caller's stop flag is set, or this process dies, the program is ended too.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use handoff_testbed::die_with_us;
use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Result};

/// Set by the caller, for instance from a signal handler, to end everything.
pub type StopFlag = Arc<AtomicBool>;

/// How many lines of a failed program's output are shown.
const LAST_LINES: usize = 8;
/// How long a program may take to clean up after it was asked to end.
const GRACE: Duration = Duration::from_secs(10);

/// Debian packages of the programs that the lab starts.
const PACKAGES: [(&str, &str); 13] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("apt-get", "apt"),
    ("apt-cache", "apt"),
    ("apt-config", "apt"),
    ("dpkg-deb", "dpkg"),
    ("mke2fs", "e2fsprogs"),
    ("depmod", "kmod"),
    ("modinfo", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("strip", "binutils"),
    ("unshare", "util-linux"),
];

/// A command in English that finds administrator's programs even where the user's path lacks them.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C.UTF-8");
    command
}

/// A command in namespaces of its own: whatever it starts ends with it, however it ends, and nobody else sees what
/// it mounts.
pub(crate) fn enclosed(program: &str) -> Command {
    let mut command = command("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", program]);
    command
}

/// The error for a failure to start `program`.
pub(crate) fn not_started(program: &str, error: &io::Error) -> Error {
    if error.kind() != io::ErrorKind::NotFound {
        return Error::Failed(format!("{program} could not be started: {error}"));
    }
    match PACKAGES.iter().find(|(name, _)| *name == program) {
        Some((_, package)) => Error::NotPossible(format!(
            "{program} is not installed; remedy: apt-get install {package}"
        )),
        None => Error::NotPossible(format!("{program} is not installed")),
    }
}

/// Runs a program to its end and returns what it wrote to standard output.
///
/// Every line of standard output and standard error goes through `line`, for progress.
pub(crate) fn run(mut command: Command, stop: &StopFlag, line: impl Fn(&str)) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    tracing::debug!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A terminal's Ctrl-C must reach it through us, so that it is asked once.
    command.process_group(0);
    // Asked to end, most programs clean up; unshare(1) ignores that, but passes on its own death.
    let last_word = if program == "unshare" { Signal::KILL } else { Signal::TERM };
    die_with_us(&mut command, last_word);
    let mut child = command.spawn().map_err(|error| not_started(&program, &error))?;

    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, true, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, false, sender);
    }
    let (mut output, mut tail) = (String::new(), Vec::new());
    let mut asked: Option<Instant> = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok((is_output, text)) => {
                line(&text);
                if is_output {
                    output.push_str(&text);
                    output.push('\n');
                }
                tail.push(text);
                if tail.len() > LAST_LINES {
                    tail.remove(0);
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        if stop.load(Ordering::Acquire) {
            let signal = match asked {
                None => last_word,
                Some(when) if when.elapsed() > GRACE => Signal::KILL,
                Some(_) => continue,
            };
            asked.get_or_insert_with(Instant::now);
            // A process that has ended already is fine.
            let _ = kill_process(Pid::from_child(&child), signal);
        }
    }
    let status = child.wait().map_err(Error::failed)?;
    if asked.is_some() {
        return Err(Error::Stopped);
    }
    if !status.success() {
        let tail = tail.join(" | ");
        return Err(Error::Failed(format!("{program} failed ({status}): {tail}")));
    }
    Ok(output)
}

fn forward(
    source: impl io::Read + Send + 'static,
    is_output: bool,
    sender: mpsc::Sender<(bool, String)>,
) {
    thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut bytes = Vec::new();
        while let Ok(1..) = source.read_until(b'\n', &mut bytes) {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if sender.send((is_output, text)).is_err() {
                return;
            }
            bytes.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let error = not_started("mmdebstrap", &io::ErrorKind::NotFound.into());
        assert_eq!(error.code(), 3);
        assert!(error.to_string().ends_with("apt-get install mmdebstrap"), "{error}");
    }

    #[test]
    fn a_failure_shows_the_last_words() {
        let mut shell = command("sh");
        shell.args(["-c", "echo out; echo cause >&2; exit 7"]);
        let error = run(shell, &StopFlag::default(), |_| {}).expect_err("exit code 7");
        assert!(error.to_string().contains("cause"), "{error}");
    }

    #[test]
    fn the_stop_flag_ends_a_program() {
        let stop = StopFlag::default();
        let mut shell = command("sleep");
        shell.arg("60");
        let begin = Instant::now();
        let setter = Arc::clone(&stop);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            setter.store(true, Ordering::Release);
        });
        assert!(matches!(run(shell, &stop, |_| {}), Err(Error::Stopped)));
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    mod native {
        use super::*;

        #[test]
        fn an_enclosed_program_takes_its_children_and_mounts_along() {
            let place = tempfile::tempdir().expect("a directory");
            let mut shell = enclosed("sh");
            // Like mmdebstrap, it waits for its child when it is asked to end. The child holds the pipes open.
            let script = "trap '' TERM; mount -t tmpfs none $1; sleep 60 & echo there; wait";
            shell.args(["-c", script, "sh"]).arg(place.path());
            let stop = StopFlag::default();
            let begin = Instant::now();
            let ended = run(shell, &stop, |line| {
                assert_eq!(line, "there");
                stop.store(true, Ordering::Release);
            });
            assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
            assert!(begin.elapsed() < GRACE, "{:?}", begin.elapsed());
            let mounts = std::fs::read_to_string("/proc/self/mounts").expect("can be read");
            assert!(!mounts.contains(&place.path().display().to_string()), "{mounts}");
        }
    }
}
