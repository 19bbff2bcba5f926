//! The options that describe a guest, shared by the subcommands that boot one.

use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::error::Result;
use crate::kernel::KernelChoice;
use crate::machine::{Acceleration, Disk, Machine, Put};
use crate::module;
use crate::strip::Stripped;
use crate::tool::StopFlag;
use crate::userland::Userland;

/// Files and programs to carry into a guest.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Carried {
    /// Copy a file or directory into the guest, to TARGET or to /root; may be repeated
    #[arg(long, value_name = "PATH[:TARGET]", value_parser = parse_put)]
    pub put: Vec<Put>,
    /// Put this program on the guest's path; may be repeated
    #[arg(long, value_name = "PATH")]
    pub program: Vec<PathBuf>,
}

impl Carried {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.program.is_empty()
    }

    /// In the form that the guest takes.
    pub(super) fn puts(&self, stripped: &Stripped) -> Vec<Put> {
        let on_path = |path: &PathBuf| stripped.on_path(path, path.file_name().unwrap_or_default());
        self.put.iter().cloned().chain(self.program.iter().map(on_path)).collect()
    }
}

/// Options that describe a guest.
#[derive(Debug, clap::Args)]
pub struct GuestOptions {
    /// Kernel: a series in trixie-backports (7.2, 7.3), bookworm for Debian 12's own 6.1,
    /// kasan for the one with sanitizers
    #[arg(long, default_value_t, value_name = "NAME")]
    pub kernel: KernelChoice,
    /// Root file system: small, or full, which boots systemd and has apt and dkms, but neither
    /// this command nor the modules: it is for trying packages of them
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    pub userland: Userland,
    /// Virtual processors
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
    /// Memory in MiB
    #[arg(long, default_value_t = 2048, value_name = "MIB", value_parser = clap::value_parser!(u32).range(256..))]
    pub memory: u32,
    /// A disk, /dev/disk/by-id/virtio-NAME in the guest: NAME=SIZE in memory, NAME=/path a file
    /// that the guest changes, NAME=/path,snapshot a file that stays as it is
    #[arg(long, value_name = "NAME=WHAT")]
    pub disk: Vec<Disk>,
    /// An NVMe disk, /dev/disk/by-id/nvme-NAME in the guest (from Linux 7.2 on), given as --disk is
    #[arg(long, value_name = "NAME=WHAT")]
    pub nvme: Vec<Disk>,
    /// Pairs of virtio-net devices, each joined inside QEMU and to nothing else
    #[arg(long, default_value_t = 0, value_name = "PAIRS", value_parser = clap::value_parser!(u8).range(..=8))]
    pub virtio_net: u8,
    /// The files and programs for it.
    #[command(flatten)]
    pub carried: Carried,
    /// Build the kernel module in this directory for the guest, where modprobe finds it and
    /// $HANDOFF_MODULES has it
    #[arg(long, value_name = "DIRECTORY")]
    pub module: Vec<PathBuf>,
    /// How instructions are executed
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub accel: Acceleration,
    /// Count instructions: one processor, and a clock that advances one nanosecond for each
    /// instruction; the same as --accel icount
    #[arg(long, conflicts_with = "accel")]
    pub icount: bool,
    /// Show the kernel's console on stderr
    #[arg(long)]
    pub console: bool,
}

/// A guest to boot, and the programs prepared for it; they are removed when this is dropped.
pub struct Prepared {
    /// The guest.
    pub machine: Machine,
    /// Programs without debug information.
    pub stripped: Stripped,
}

impl GuestOptions {
    /// The guest, with the programs of Handoff on its path unless its userland is for packages.
    ///
    /// # Errors
    ///
    /// See [`crate::Error`].
    pub fn prepare(&self, stop: &StopFlag) -> Result<Prepared> {
        let stripped = Stripped::new()?;
        let mut puts = self.carried.puts(&stripped);
        if self.userland == Userland::Small {
            puts.extend(stripped.programs(None));
        }
        let cache = Cache::open()?;
        for directory in &self.module {
            puts.extend(module::build(&self.kernel, directory, &cache, stop)?);
        }
        let machine = Machine {
            kernel: self.kernel.clone(),
            userland: self.userland,
            cpus: self.cpus,
            memory: self.memory,
            acceleration: if self.icount { Acceleration::InstructionCounting } else { self.accel },
            disks: self.disk.clone(),
            nvme: self.nvme.clone(),
            virtio_net: self.virtio_net,
            puts,
            show_console: self.console,
            ..Machine::default()
        };
        Ok(Prepared { machine, stripped })
    }
}

/// `PATH` or `PATH:TARGET`; a relative target is below the guest's /root.
fn parse_put(text: &str) -> std::result::Result<Put, String> {
    let (source, target) = split_pair(text);
    let source = PathBuf::from(source);
    let name = source.canonicalize().map_err(|error| format!("{}: {error}", source.display()))?;
    let name = name.file_name().unwrap_or_default().to_owned();
    let target = Path::new("/root").join(target.map_or(name.into(), PathBuf::from));
    Ok(Put { source, target })
}

/// The two halves of `A:B`, the second of which may be missing.
pub(super) fn split_pair(text: &str) -> (&str, Option<&str>) {
    match text.split_once(':') {
        Some((first, second)) => (first, Some(second)),
        None => (text, None),
    }
}
