//! Runs a command so that it leaves nothing on this machine, however it ends.
//!
//! Contracts:
//! - the command and everything that it starts are in a PID namespace: they end with the command, and
//!   with us, also after a kill -9 of either;
//! - it has a mount namespace of its own; `/tmp`, `/var/tmp`, `/run` and `/dev/shm` are empty
//!   directories that only the command sees, the first two below `target/`; what is needed from there stays
//!   ([`NEEDED`], the name servers);
//! - it has a network namespace of its own, with nothing but loopback, so its network devices end with it;
//!   only a command that has to fetch something is left the network of this machine;
//! - lines that begin with [`LEFT`] name what it left there, or running, or as a device;
//! - without CAP_SYS_ADMIN and CAP_NET_ADMIN it runs as it is.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use handoff_testbed::Namespace;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{
    Signal, WaitOptions, WaitStatus, getpid, set_parent_process_death_signal, wait,
};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use crate::run;

/// The beginning of a line that names a leftover.
pub(crate) const LEFT: &str = "left behind: ";

/// This program's path, which also works if it was rebuilt since it started.
pub(crate) const OURSELVES: &str = "/proc/self/exe";

/// Empty directories take their place.
const HIDDEN: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];

/// Variables that name directories which builds and the lab need, also where they are below hidden ones.
const NEEDED: [&str; 4] = ["HOME", "CARGO_HOME", "RUSTUP_HOME", handoff_lab::DIRECTORY_VARIABLE];

const BLOCK_DEVICES: &str = "/sys/class/block";

/// Everything below it is removed before and after each run.
const SCRATCH: &str = "target/scratch";

/// Arguments of `cargo xtask sandbox`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Set by ourselves: the namespaces are there
    #[arg(long, hide = true)]
    inside: bool,

    /// Leave it this machine's network, to fetch something
    #[arg(long)]
    network: bool,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn task(args: &Args) -> Result<ExitCode, String> {
    let status = if args.inside {
        inside(&args.command)
    } else if may_make_namespaces() {
        outside(args)
    } else {
        words(&args.command).status().map_err(|error| error.to_string())
    }?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Loopback goes up by CAP_NET_ADMIN.
fn may_make_namespaces() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Makes the namespaces, and waits for the first process in them.
fn outside(args: &Args) -> Result<ExitStatus, String> {
    // The command gets the signal too, and cleans up; we wait for it.
    run::stop_flag().map_err(|error| format!("signal handlers: {error}"))?;
    clear()?;
    // It takes a thread, and once our children are to be in another PID namespace we can start none.
    let network = if args.network { None } else { Some(Namespace::new()) };
    let network = network.transpose().map_err(|error| error.to_string())?;
    // SAFETY: neither flag separates this thread's file descriptors from the others'.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID | UnshareFlags::NEWNS) }
        .map_err(|error| format!("namespaces: {error}"))?;
    let mut first = Command::new(OURSELVES);
    first.args(["sandbox", "--inside", "--"]).args(&args.command);
    if let Some(network) = &network {
        network.attach(&mut first);
    }
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
    let directories = Directories::new().map_err(|error| format!("sandbox: {error}"))?;
    let before = directories.tracks();
    let child = words(command).env("TMPDIR", &directories.temporary).spawn();
    let child = child.map_err(|error| format!("{}: {error}", command[0].display()))?;
    let status = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_pid() as u32 == child.id() => break status,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("sandbox: {error}")),
        }
    };
    for track in directories.tracks().difference(&before) {
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
struct Directories {
    empty: Vec<PathBuf>,
    /// Where temporary files go; not `/tmp` if the tree itself is in there, so that it stays as it is.
    temporary: PathBuf,
}

impl Directories {
    fn new() -> io::Result<Self> {
        let tree = env::current_dir()?;
        // Later mounts are seen only here.
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        mount("proc", "/proc", "proc", MountFlags::empty(), None)?;
        let needed = needed()?;
        let servers = fs::canonicalize("/etc/resolv.conf");
        let servers = servers.and_then(|path| Ok((fs::read(&path)?, path)));
        for directory in ["/run", "/dev/shm"] {
            mount("handoff", directory, "tmpfs", MountFlags::empty(), None)?;
        }
        // Where mount(8) keeps its notes.
        fs::create_dir("/run/mount")?;
        // The name servers may be there, too.
        if let Ok((text, path)) = servers
            && !path.exists()
        {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            fs::write(path, text)?;
        }
        let empty = vec!["/run".into(), "/dev/shm".into()];
        let mut directories = Self { empty, temporary: "/tmp".into() };
        for directory in ["/tmp", "/var/tmp"] {
            let own = tree.join(SCRATCH).join(&directory[1..]);
            fs::create_dir_all(&own)?;
            // Everybody may write there, as in the real ones.
            fs::set_permissions(&own, Permissions::from_mode(0o1777))?;
            if tree.starts_with(directory) {
                directories.temporary = own.clone();
                directories.empty.push(own);
            } else {
                mount_bind(&own, directory)?;
                directories.empty.push(directory.into());
            }
        }
        for (path, directory) in needed {
            fs::create_dir_all(&path)?;
            mount_bind(format!("/proc/self/fd/{}", directory.as_raw_fd()), &path)?;
        }
        Ok(directories)
    }

    /// Everything that a command could leave.
    fn tracks(&self) -> BTreeSet<String> {
        let mut tracks = BTreeSet::new();
        for directory in &self.empty {
            tracks.extend(names(directory).map(|name| directory.join(name).display().to_string()));
        }
        // What is mounted at /sys shows the devices of this machine's network, not of ours.
        let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
        let devices = devices.lines().filter_map(|line| line.split_once(':'));
        tracks.extend(devices.map(|(name, _)| format!("network device {}", name.trim())));
        tracks.extend(names(Path::new(BLOCK_DEVICES)).filter_map(|name| block_device(&name)));
        let processes = names(Path::new("/proc"))
            .filter_map(|name| name.to_str()?.parse::<i32>().ok())
            .filter(|pid| *pid != getpid().as_raw_pid())
            .filter(|pid| !is_zombie(*pid));
        tracks.extend(processes.map(|pid| format!("process {pid}, {}", name_of(pid))));
        // By number, since one place may have several.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        tracks.extend(words.map(|words| format!("mount {} at {}", words[0], words[4])));
        tracks
    }
}

/// The directories that [`NEEDED`] names, as far as they are about to be hidden.
fn needed() -> io::Result<Vec<(PathBuf, OwnedFd)>> {
    let is_below = |path: &Path, above: &str| path.starts_with(above) && path != Path::new(above);
    let paths = NEEDED.iter().filter_map(env::var_os).map(PathBuf::from);
    let hidden = paths.filter(|path| HIDDEN.iter().any(|above| is_below(path, above)));
    let opened = hidden.map(|path| {
        fs::create_dir_all(&path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty())?;
        Ok((path, directory))
    });
    opened.collect()
}

fn names(directory: &Path) -> impl Iterator<Item = OsString> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// A block device that somebody has to remove. Loop devices stay, once there, but not what they are attached to.
fn block_device(name: &OsStr) -> Option<String> {
    let file = Path::new(BLOCK_DEVICES).join(name).join("loop/backing_file");
    let file = fs::read_to_string(file).unwrap_or_default();
    let name = name.to_str()?;
    match file.trim_end() {
        "" if name.starts_with("loop") => None,
        "" => Some(format!("block device {name}")),
        file => Some(format!("loop device {name} of {file}")),
    }
}

fn name_of(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // In one line.
    String::from_utf8_lossy(&words).replace(['\0', '\n'], " ").trim().to_owned()
}

/// Whether it has ended, and nobody has waited for it yet.
fn is_zombie(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("\nState:\tZ") || status.contains("\nState:\tX")
}
