//! Runs a command so that it leaves nothing on this machine, however it ends.
//!
//! Contracts:
//! - the command and everything that it starts are in a PID namespace: they end with the command, and
//!   with us, also after a kill -9 of either;
//! - it has a mount namespace of its own; `/tmp`, `/var/tmp`, `/run` and `/dev/shm` are empty
//!   directories that only the command sees, the first two below `target/`;
//! - lines that begin with [`LEFT`] name what it left there, or running, or as a device of this machine;
//! - without root it runs as it is.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{
    Signal, WaitOptions, WaitStatus, getpid, set_parent_process_death_signal, wait,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::run;

/// The beginning of a line that names a leftover.
pub(crate) const LEFT: &str = "left behind: ";

/// This program's path, which also works if it was rebuilt since it started.
pub(crate) const OURSELVES: &str = "/proc/self/exe";

/// Everything below it is removed before and after each run.
const SCRATCH: &str = "target/scratch";

/// Arguments of `cargo xtask sandbox`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Set by ourselves: the namespaces are there
    #[arg(long, hide = true)]
    inside: bool,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn task(args: &Args) -> Result<ExitCode, String> {
    let status = if args.inside {
        inside(&args.command)
    } else if rustix::process::geteuid().is_root() {
        outside(&args.command)
    } else {
        words(&args.command).status().map_err(|error| error.to_string())
    }?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Makes the namespaces, and waits for the first process in them.
fn outside(command: &[OsString]) -> Result<ExitStatus, String> {
    // The command gets the signal too, and cleans up; we wait for it.
    run::stop_flag().map_err(|error| format!("signal handlers: {error}"))?;
    clear()?;
    // SAFETY: neither flag separates this thread's file descriptors from the others'.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID | UnshareFlags::NEWNS) }
        .map_err(|error| format!("namespaces: {error}"))?;
    let mut first = Command::new(OURSELVES);
    first.args(["sandbox", "--inside", "--"]).args(command);
    // Our process id means nothing in there, so nobody checks whether we still live.
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        first.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    let status = first.status().map_err(|error| format!("sandbox: {error}"));
    clear()?;
    status
}

/// Runs the command as the first process of a PID namespace, whose orphans come to us.
fn inside(command: &[OsString]) -> Result<ExitStatus, String> {
    let place = Place::new().map_err(|error| format!("sandbox: {error}"))?;
    let before = place.tracks();
    let mut child = words(command);
    if let Some(directory) = &place.temporary {
        child.env("TMPDIR", directory);
    }
    let child = child.spawn().map_err(|error| format!("{}: {error}", command[0].display()))?;
    let status = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_pid() as u32 == child.id() => break status,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("sandbox: {error}")),
        }
    };
    for track in place.tracks().difference(&before) {
        println!("{LEFT}{track}");
    }
    Ok(exit_status(status))
}

fn exit_status(status: WaitStatus) -> ExitStatus {
    ExitStatus::from_raw(status.as_raw())
}

fn words(command: &[OsString]) -> Command {
    let mut words = Command::new(&command[0]);
    words.args(&command[1..]);
    words
}

/// Removes what runs have put into the scratch directory.
fn clear() -> Result<(), String> {
    match fs::remove_dir_all(SCRATCH) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{SCRATCH}: {error}")),
        _ => Ok(()),
    }
}

/// The directories that only the command sees.
struct Place {
    empty: Vec<PathBuf>,
    /// Where temporary files go if `/tmp` stays as it is: then the tree itself is in there.
    temporary: Option<PathBuf>,
}

impl Place {
    fn new() -> io::Result<Self> {
        let tree = std::env::current_dir()?;
        // Later mounts are seen only here.
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        mount("proc", "/proc", "proc", MountFlags::empty(), None)?;
        for directory in ["/run", "/dev/shm"] {
            mount("handoff", directory, "tmpfs", MountFlags::empty(), None)?;
        }
        // Where mount(8) keeps its notes.
        fs::create_dir("/run/mount")?;
        let mut place = Self { empty: vec!["/run".into(), "/dev/shm".into()], temporary: None };
        for directory in ["/tmp", "/var/tmp"] {
            let own = tree.join(SCRATCH).join(&directory[1..]);
            fs::create_dir_all(&own)?;
            // Everybody may write there, as in the real ones.
            fs::set_permissions(&own, Permissions::from_mode(0o1777))?;
            if tree.starts_with(directory) {
                place.temporary = Some(own.clone());
                place.empty.push(own);
            } else {
                mount_bind(&own, directory)?;
                place.empty.push(directory.into());
            }
        }
        Ok(place)
    }

    /// Everything that a command could leave.
    fn tracks(&self) -> BTreeSet<String> {
        let mut tracks = BTreeSet::new();
        for directory in &self.empty {
            tracks.extend(names(directory).map(|name| directory.join(name).display().to_string()));
        }
        for kind in ["net", "block"] {
            let class = Path::new("/sys/class").join(kind);
            let devices = names(&class);
            tracks.extend(devices.map(|name| format!("{kind} device {}", name.display())));
        }
        let processes = names(Path::new("/proc"))
            .filter_map(|name| name.to_str()?.parse::<i32>().ok())
            .filter(|pid| *pid != getpid().as_raw_pid())
            .filter(|pid| !is_zombie(*pid));
        tracks.extend(processes.map(|pid| format!("process {pid}, {}", name_of(pid))));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        tracks.extend(places.map(|place| format!("mount at {place}")));
        tracks
    }
}

fn names(directory: &Path) -> impl Iterator<Item = OsString> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

fn name_of(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ").trim().to_owned()
}

/// Whether it has ended, and nobody has waited for it yet.
fn is_zombie(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("\nState:\tZ") || status.contains("\nState:\tX")
}
