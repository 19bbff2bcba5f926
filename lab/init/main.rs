//! Process 1 of the lab's guest: brings the machine up, then lets [`agent`] run commands for the
//! host, reaps orphans, and powers off when the agent ends. Where the kernel's arguments name an init, as
//! for a userland with systemd, that becomes process 1, and the agent itself powers off.
//!
//! Contracts:
//! - it depends only on the standard library, linked statically: it runs from the initramfs, which has
//!   nothing else;
//! - every fault is printed on the console, where the host reads it, and the machine is switched off: a
//!   guest never waits for somebody to look at it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

mod agent;
mod proc;
mod system;
mod tasks;
mod tracks;
#[allow(dead_code, reason = "each side uses its half")]
mod wire;

use agent::Leftovers;

/// How long disks and the host's port may take to appear; slow only on an overloaded machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long systemd may take to start everything.
const SERVICES_TIMEOUT: Duration = Duration::from_secs(150);

type Outcome<T> = Result<T, String>;

/// Puts what was tried in front of an error.
trait Trying<T> {
    fn trying(self, what: impl AsRef<str>) -> Outcome<T>;
}

impl<T> Trying<T> for io::Result<T> {
    fn trying(self, what: impl AsRef<str>) -> Outcome<T> {
        self.map_err(|error| format!("{}: {error}", what.as_ref()))
    }
}

fn main() {
    if let Err(cause) = bring_up().and_then(|()| serve()) {
        eprintln!("handoff-lab: guest init failed: {cause}");
    }
    system::power_off();
}

/// From the initramfs to a mounted userland.
fn bring_up() -> Outcome<()> {
    mount("dev", "/dev", "devtmpfs", "")?;
    mount("proc", "/proc", "proc", "")?;
    mount("sys", "/sys", "sysfs", "")?;
    // One path a line, in the order in which they depend on each other.
    for module in fs::read_to_string("/modules").trying("list of modules")?.lines() {
        let file = File::open(module).trying(module)?;
        system::load_module(&file).trying(module)?;
    }

    fs::create_dir_all("/new").trying("/new")?;
    mount_disk("root", "/new", "rw")?;
    mount_disk(
        "modules",
        "/new/usr/lib/modules",
        if next_init()?.is_some() { "rw" } else { "ro" },
    )?;
    for place in ["dev", "proc", "sys"] {
        let (from, to) = (format!("/{place}"), format!("/new/{place}"));
        system::mount_at(from.as_ref(), to.as_ref(), "", system::MS_MOVE, "").trying(to)?;
    }
    std::env::set_current_dir("/new").trying("/new")?;
    system::mount_at(".".as_ref(), "/".as_ref(), "", system::MS_MOVE, "").trying("root")?;
    system::root_here().trying("chroot")?;
    std::env::set_current_dir("/").trying("/")?;

    for place in ["/dev/pts", "/dev/shm", "/dev/disk/by-id"] {
        fs::create_dir_all(place).trying(place)?;
    }
    mount("devpts", "/dev/pts", "devpts", "mode=620,ptmxmode=666")?;
    mount("shm", "/dev/shm", "tmpfs", "")?;
    mount("run", "/run", "tmpfs", "mode=755")?;
    // Where mount(8) keeps its notes.
    fs::create_dir("/run/mount").trying("/run/mount")?;
    mount("tmp", "/tmp", "tmpfs", "mode=1777")?;
    mount("cgroup", "/sys/fs/cgroup", "cgroup2", "")?;
    mount("bpf", "/sys/fs/bpf", "bpf", "")?;
    mount("trace", "/sys/kernel/tracing", "tracefs", "")?;
    mount("debug", "/sys/kernel/debug", "debugfs", "")?;
    for (name, target) in
        [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")]
    {
        symlink(target, Path::new("/dev").join(name)).trying(name)?;
    }
    name_disks()?;
    system::name_host("lab").trying("host name")?;
    system::loopback_up().trying("loopback interface")?;
    Ok(())
}

/// What the kernel's arguments want as process 1.
fn next_init() -> Outcome<Option<String>> {
    let arguments = fs::read_to_string("/proc/cmdline").trying("the kernel's arguments")?;
    Ok(arguments.split_whitespace().find_map(|word| word.strip_prefix("init=")).map(str::to_owned))
}

/// Runs the agent as a child, so that the agent's waits do not meet the orphans that process 1 has to
/// reap.
fn serve() -> Outcome<()> {
    let port = open_port()?;
    let next = next_init()?;
    let Some(child) = system::fork_child().trying("fork")? else {
        let served = match next {
            Some(_) => wait_for_systemd()
                .and_then(|()| agent::serve(port, Leftovers::OfGroup).trying("host's port")),
            None => agent::serve(port, Leftovers::All).trying("host's port"),
        };
        if let Err(cause) = served {
            eprintln!("handoff-lab: guest agent failed: {cause}");
        }
        if next.is_some() {
            system::power_off();
        }
        std::process::exit(0);
    };
    if let Some(next) = next {
        drop(port);
        // The name that it has as process 1.
        return Err(format!("{next}: {}", Command::new(&next).arg0("/sbin/init").exec()));
    }
    // Only the agent may hold the port: the host sees the port's end as the agent's.
    drop(port);
    while let Some(pid) = system::wait_any() {
        if pid == child {
            break;
        }
    }
    Ok(())
}

/// Waits until it has started everything, well or not.
fn wait_for_systemd() -> Outcome<()> {
    let deadline = Instant::now() + SERVICES_TIMEOUT;
    loop {
        let asked =
            Command::new("/usr/bin/systemctl").args(["is-system-running", "--wait"]).output();
        let state = asked.trying("systemctl")?.stdout;
        match state.trim_ascii() {
            b"running" | b"degraded" => return Ok(()),
            state if Instant::now() > deadline => {
                return Err(format!("systemd is {}", String::from_utf8_lossy(state)));
            }
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn mount(source: &str, target: &str, kind: &str, data: &str) -> Outcome<()> {
    system::mount_at(source.as_ref(), target.as_ref(), kind, 0, data)
        .trying(format!("{kind} on {target}"))
}

fn mount_disk(serial: &str, target: &str, mode: &str) -> Outcome<()> {
    let deadline = Instant::now() + TIMEOUT;
    let device = loop {
        let virtio = format!("virtio-{serial}");
        if let Some((_, name)) = disks()?.into_iter().find(|(found, _)| *found == virtio) {
            break Path::new("/dev").join(name);
        }
        if Instant::now() > deadline {
            return Err(format!("no disk '{serial}' appeared"));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    // A read-only disk has a clean journal or none, and could not replay it.
    let (flags, data) = if mode == "ro" { (system::MS_RDONLY, "noload") } else { (0, "") };
    system::mount_at(&device, target.as_ref(), "ext4", flags, data)
        .trying(format!("disk '{serial}' on {target}"))
}

/// The host's disks: the kind with the serial number, which is the host's name for the disk, and the
/// kernel's name.
fn disks() -> Outcome<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").trying("/sys/block")?.flatten() {
        for (kind, place) in [("virtio", "serial"), ("nvme", "device/serial")] {
            if let Ok(serial) = fs::read_to_string(entry.path().join(place)) {
                let link = format!("{kind}-{}", serial.trim());
                found.push((link, entry.file_name().to_string_lossy().into()));
            }
        }
    }
    Ok(found)
}

/// Gives each disk the link that udev would give it.
fn name_disks() -> Outcome<()> {
    for (link, name) in disks()? {
        let link = format!("/dev/disk/by-id/{link}");
        symlink(Path::new("/dev").join(name), &link).trying(link)?;
    }
    Ok(())
}

fn open_port() -> Outcome<File> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(path) = find_port() {
            return File::options().read(true).write(true).open(&path).trying("host's port");
        }
        if Instant::now() > deadline {
            return Err("the host's port did not appear".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn find_port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let ours = ports.flatten().find(|port| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == "handoff")
    })?;
    Some(Path::new("/dev").join(ours.file_name()))
}
