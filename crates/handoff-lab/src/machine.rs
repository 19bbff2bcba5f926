//! The parts of a guest, and the QEMU command line that makes it.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use handoff_testbed::{Side, die_with_us};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Signal;

use crate::error::{Error, Result, Trying};
use crate::initramfs;
use crate::kernel::{Kernel, KernelChoice};
use crate::tool;
use crate::userland::Userland;

/// The emulator.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// How a guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Acceleration {
    /// KVM if a trial boot works, otherwise software emulation
    #[default]
    Auto,
    /// This machine's processor executes them
    Kvm,
    /// QEMU emulates them in software
    #[value(name = "tcg")]
    Emulation,
    /// QEMU emulates and counts them: one processor, and a clock that advances one nanosecond for each
    #[value(name = "icount")]
    InstructionCounting,
}

impl Acceleration {
    /// Value of `HANDOFF_EMULATED` in the guest; `None` where nothing is emulated.
    pub fn emulated(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::Kvm => None,
            Self::Emulation => Some("tcg"),
            Self::InstructionCounting => Some("icount"),
        }
    }
}

/// What kind of device a disk is in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bus {
    Virtio,
    Nvme,
}

/// A disk besides the root disk; in the guest it is `/dev/disk/by-id/virtio-NAME`, or `nvme-NAME` for one
/// of [`Machine::nvme`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Name of the disk: letters, digits and `-`, at most 20.
    pub name: String,
    /// Where its content is.
    pub content: DiskContent,
}

/// Where the content of a [`Disk`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskContent {
    /// In memory, empty, of so many bytes; it ends with the guest.
    Scratch(u64),
    /// In a file of the host, which the guest changes.
    File(PathBuf),
    /// In a file of the host; the guest's changes end with the guest.
    Snapshot(PathBuf),
}

impl FromStr for Disk {
    type Err = String;

    /// `NAME=SIZE` (`512M`, `2G`), `NAME=PATH` or `NAME=PATH,snapshot`; a path contains a slash.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let expected = "expected NAME=SIZE (512M, 2G), NAME=/path or NAME=/path,snapshot";
        let (name, content) = text.split_once('=').ok_or(expected)?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if name.is_empty() || name.len() > 20 || !name.bytes().all(fits) {
            return Err("a disk's name is 1 to 20 letters, digits and dashes".to_owned());
        }
        if ["root", "modules", "payload"].contains(&name) {
            return Err(format!("the lab has a disk named {name} already"));
        }
        let content = match content.strip_suffix(",snapshot") {
            Some(path) => DiskContent::Snapshot(path.into()),
            None if content.contains('/') => DiskContent::File(content.into()),
            None => DiskContent::Scratch(parse_size(content).ok_or(expected)?),
        };
        Ok(Self { name: name.to_owned(), content })
    }
}

/// Bytes from `512`, `64K`, `512M` or `2G` (powers of 1024), as a multiple of 512.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (bytes > 0 && bytes % 512 == 0).then_some(bytes)
}

/// A file or directory of the host that the guest gets a copy of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Path on the host; a directory goes with everything in it, links are followed.
    pub source: PathBuf,
    /// Absolute path in the guest.
    pub target: PathBuf,
}

/// A guest to boot.
///
/// ```
/// use handoff_lab::{Acceleration, Machine};
///
/// let machine = Machine {
///     kernel: "7.3".parse().unwrap(),
///     acceleration: Acceleration::InstructionCounting,
///     disks: vec!["data=1G".parse().unwrap(), "image=/srv/disk.img,snapshot".parse().unwrap()],
///     ..Machine::default()
/// };
/// ```
#[derive(Debug, Clone)]
pub struct Machine {
    /// The kernel.
    pub kernel: KernelChoice,
    /// The root file system.
    pub userland: Userland,
    /// Virtual processors; instruction counting always has one.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// How instructions are executed.
    pub acceleration: Acceleration,
    /// Further disks.
    pub disks: Vec<Disk>,
    /// Further disks that are NVMe devices: memory for direct I/O need only be aligned to 4 bytes. Linux
    /// 7.2 and later have the driver built in.
    pub nvme: Vec<Disk>,
    /// Pairs of virtio-net devices, each joined inside QEMU and to nothing else
    /// ([`Pair::virtio`](handoff_testbed::Pair::virtio)).
    pub virtio_net: u8,
    /// What is copied into the guest when it has booted.
    pub puts: Vec<Put>,
    /// Shows the kernel's console on stderr.
    pub show_console: bool,
    /// How long the boot may take.
    pub boot_timeout: Duration,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            kernel: KernelChoice::default(),
            userland: Userland::default(),
            cpus: 2,
            memory: 2048,
            acceleration: Acceleration::default(),
            disks: Vec::new(),
            nvme: Vec::new(),
            virtio_net: 0,
            puts: Vec::new(),
            show_console: false,
            boot_timeout: Duration::from_secs(60),
        }
    }
}

/// A started emulator and our ends of its connections.
pub(crate) struct Running {
    pub(crate) process: Child,
    pub(crate) control: UnixStream,
}

impl Machine {
    /// Starts QEMU. `acceleration` is decided, never [`Acceleration::Auto`].
    pub(crate) fn start(
        &self,
        acceleration: Acceleration,
        kernel: &Kernel,
        userland: &Path,
    ) -> Result<Running> {
        let (control, theirs) = UnixStream::pair().trying("socket pair")?;
        let initramfs = anonymous("initramfs", &initramfs::build(kernel)?)?;
        let mut inherited = vec![OwnedFd::from(theirs), initramfs];
        let (port, initramfs) = (inherited[0].as_raw_fd(), inherited[1].as_raw_fd());

        let mut qemu = tool::command(QEMU);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.args(["-m", &format!("{}M", self.memory)]);
        processor(&mut qemu, acceleration, self.cpus);
        qemu.arg("-kernel").arg(kernel.image());
        qemu.arg("-initrd").arg(inherited_path(initramfs));
        qemu.args(["-append", &kernel_arguments(acceleration, self.userland)]);
        qemu.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
        qemu.args(["-device", "virtio-serial-pci"]);
        qemu.args(["-chardev", &format!("socket,id=control,fd={port}")]);
        qemu.args(["-device", "virtserialport,chardev=control,name=handoff"]);

        let virtio = Bus::Virtio;
        disk(&mut qemu, virtio, "root", userland, "snapshot=on,cache=unsafe");
        // Where packages build modules, they go beside the kernel's own.
        let modules = match self.userland {
            Userland::Small => "readonly=on",
            Userland::Full => "snapshot=on,cache=unsafe",
        };
        disk(&mut qemu, virtio, "modules", &kernel.modules_disk(), modules);
        if !self.puts.is_empty() {
            let payload = archive(&self.puts)?;
            disk_of_descriptor(&mut qemu, virtio, "payload", payload.as_raw_fd());
            inherited.push(payload);
        }
        let virtio = self.disks.iter().map(|disk| (Bus::Virtio, disk));
        let nvme = self.nvme.iter().map(|disk| (Bus::Nvme, disk));
        for (bus, Disk { name, content }) in virtio.chain(nvme) {
            match content {
                DiskContent::File(path) => {
                    must_exist(path)?;
                    disk(&mut qemu, bus, name, path, "cache=writeback");
                }
                DiskContent::Snapshot(path) => {
                    must_exist(path)?;
                    disk(&mut qemu, bus, name, path, "snapshot=on,cache=unsafe");
                }
                DiskContent::Scratch(bytes) => {
                    let file = File::from(anonymous(name, &[])?);
                    file.set_len(*bytes).trying(format!("disk {name}"))?;
                    disk_of_descriptor(&mut qemu, bus, name, file.as_raw_fd());
                    inherited.push(file.into());
                }
            }
        }

        (0..self.virtio_net).for_each(|pair| virtio_net(&mut qemu, pair));

        // Ctrl-C on the terminal is for us: we end the guest in order.
        qemu.process_group(0);
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_us(&mut qemu, Signal::KILL);
        pass(&mut qemu, &inherited);
        tracing::debug!("{qemu:?}");
        let process = qemu.spawn().map_err(|error| tool::not_started(QEMU, &error))?;
        Ok(Running { process, control })
    }
}

fn processor(qemu: &mut Command, acceleration: Acceleration, cpus: u32) {
    // QEMU runs a fast-string copy byte by byte, which makes copying several times slower than
    // everything else; without these feature bits the kernel copies by words.
    let slow_strings = "max,-erms,-fsrm";
    // Emulated processors take turns in one thread. With a thread each, under QEMU 7.2 one of five
    // guests that were traced under load panicked at a breakpoint that was no longer there: QEMU seems
    // to execute an instruction that another processor has replaced.
    let in_turns = "tcg,thread=single";
    let (accel, model, cpus) = match acceleration {
        Acceleration::Kvm => ("kvm", "host", cpus),
        Acceleration::Auto | Acceleration::Emulation => (in_turns, slow_strings, cpus),
        Acceleration::InstructionCounting => (in_turns, slow_strings, 1),
    };
    qemu.args(["-machine", "q35", "-accel", accel, "-cpu", model, "-smp", &cpus.to_string()]);
    if acceleration == Acceleration::InstructionCounting {
        // One instruction is one nanosecond of the guest's time; idle time is skipped.
        qemu.args(["-icount", "shift=0,sleep=off"]);
    }
}

fn kernel_arguments(acceleration: Acceleration, userland: Userland) -> String {
    let mut arguments = vec![
        "console=ttyS0",
        "8250.nr_uarts=1",
        // Warnings and worse; the rest would cost seconds of boot at a serial port's speed.
        "loglevel=5",
        "printk.devkmsg=on",
        "panic=-1",
        "sysctl.kernel.hung_task_timeout_secs=60",
    ];
    if acceleration.emulated().is_some() {
        // Nothing secret runs here, and the mitigations cost emulated time. QEMU translates a program
        // once if it is at the same addresses in each process: it starts in a sixth of the time. The
        // kernel's tests of its own ciphers take a tenth of a boot. A busy host stops an emulated
        // processor for long; that is no lockup, and no broken timer, for which the kernel would panic
        // as it boots.
        arguments.extend([
            "mitigations=off",
            "norandmaps",
            "cryptomgr.notests=1",
            "no_timer_check",
            "rcupdate.rcu_cpu_stall_timeout=120",
            "watchdog_thresh=60",
        ]);
    }
    if acceleration == Acceleration::InstructionCounting {
        // The same addresses in every run, and the counter itself as the clock.
        arguments.extend(["nokaslr", "tsc=reliable", "clocksource=tsc"]);
    }
    // Our init reads it; the kernel itself takes the init of the initramfs.
    arguments.extend(userland.init());
    arguments.join(" ")
}

fn disk(qemu: &mut Command, bus: Bus, name: &str, path: &Path, options: &str) {
    // QEMU's option syntax takes a doubled comma for one.
    let path = path.display().to_string().replace(',', ",,");
    qemu.args(["-drive", &format!("if=none,id={name},format=raw,file={path},{options}")]);
    let device = match bus {
        Bus::Virtio => "virtio-blk-pci",
        Bus::Nvme => "nvme",
    };
    qemu.args(["-device", &format!("{device},drive={name},serial={name}")]);
}

fn disk_of_descriptor(qemu: &mut Command, bus: Bus, name: &str, descriptor: RawFd) {
    disk(qemu, bus, name, &inherited_path(descriptor), "cache=unsafe");
}

/// The number under which the child opens an inherited descriptor.
fn inherited_path(descriptor: RawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{descriptor}"))
}

/// Two devices on a hub inside QEMU, which passes frames from one to the other.
fn virtio_net(qemu: &mut Command, pair: u8) {
    for side in [Side::Left, Side::Right] {
        let end = format!("pair{pair}-{side:?}");
        let mac =
            handoff_testbed::virtio_mac(pair, side).map(|byte| format!("{byte:02x}")).join(":");
        qemu.args(["-netdev", &format!("hubport,id={end},hubid={pair}")]);
        // They send by a timer of the guest's clock: under instruction counting that clock jumps over
        // idle time, and frames that leave by the host's clock would be late by all of it. Nothing boots
        // from the network.
        let how = "tx=timer,romfile=";
        qemu.args(["-device", &format!("virtio-net-pci,netdev={end},mac={mac},{how}")]);
    }
}

fn must_exist(path: &Path) -> Result<()> {
    fs::metadata(path)
        .map(drop)
        .map_err(|error| Error::Usage(format!("disk {}: {error}", path.display())))
}

/// Lets the child inherit `descriptors` under their own numbers.
fn pass(command: &mut Command, descriptors: &[OwnedFd]) {
    let descriptors: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: between fork and exec only system calls are made; the descriptors are open there,
    // because the caller's values live until after the spawn.
    unsafe {
        command.pre_exec(move || {
            for descriptor in &descriptors {
                let descriptor = rustix::fd::BorrowedFd::borrow_raw(*descriptor);
                fcntl_setfd(descriptor, FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

/// A file without a name, so nothing is left behind however this process ends.
fn anonymous(name: &str, content: &[u8]) -> Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC).trying(name)?;
    let mut file = File::from(file);
    file.write_all(content).and_then(|()| file.rewind()).trying(name)?;
    Ok(file.into())
}

/// The files for the guest, as a tar archive.
fn archive(puts: &[Put]) -> Result<OwnedFd> {
    let file = File::from(anonymous("payload", &[])?);
    let mut archive = tar::Builder::new(file);
    for Put { source, target } in puts {
        let name = target.strip_prefix("/").map_err(|_| {
            Error::Usage(format!("{}: not absolute in the guest", target.display()))
        })?;
        let what = source.display();
        let kind =
            fs::metadata(source).map_err(|error| Error::Usage(format!("{what}: {error}")))?;
        if kind.is_dir() {
            archive.append_dir_all(name, source).trying(what)?;
        } else {
            archive.append_path_with_name(source, name).trying(what)?;
        }
    }
    Ok(archive.into_inner().trying("payload")?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_read() {
        let scratch: Disk = "data=2G".parse().expect("a size");
        assert_eq!(scratch.content, DiskContent::Scratch(2 << 30));
        let file: Disk = "data=/tmp/x.img".parse().expect("a file");
        assert_eq!(file.content, DiskContent::File("/tmp/x.img".into()));
        let snapshot: Disk = "data=./x,snapshot".parse().expect("a snapshot");
        assert_eq!(snapshot.content, DiskContent::Snapshot("./x".into()));
        for wrong in ["data", "=1G", "data=", "data=0", "data=1T", "data=513", "root=1G", "a b=1G"]
        {
            assert!(wrong.parse::<Disk>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn both_ends_of_a_pair_are_on_one_hub_and_have_addresses_of_their_own() {
        let mut qemu = Command::new(QEMU);
        virtio_net(&mut qemu, 1);
        let line = format!("{qemu:?}");
        assert_eq!(line.matches("hubid=1").count(), 2, "{line}");
        for mac in ["mac=02:00:00:79:01:01,", "mac=02:00:00:79:01:02,"] {
            assert_eq!(line.matches(mac).count(), 1, "{line}");
        }
    }

    #[test]
    fn counting_has_one_processor_and_slow_strings() {
        let mut qemu = Command::new(QEMU);
        processor(&mut qemu, Acceleration::InstructionCounting, 8);
        let line = format!("{qemu:?}");
        for part in ["\"-smp\" \"1\"", "-erms,-fsrm", "\"-icount\" \"shift=0"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
}
