//! Loads the BPF object and attaches its programs.
//!
//! Contracts:
//! - counting begins when [`Meter::attach`] returns, everywhere at once, and ends with the drop: the
//!   kernel detaches and frees everything when the descriptors close, so nothing is left behind, also
//!   after kill -9;
//! - on a kernel that lacks a function, the meter counts without it and says so; on one that lacks the
//!   functions with nearly all copies, it is [`Unavailable`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::btf::Btf;
use libbpf_rs::{Iter, Link, Map, MapCore as _, MapFlags, Object, ProgramMut, ProgramType};

use crate::breakpoint;
use crate::object::{self, LIBC, PROCESSES};
use crate::options::Options;
use crate::report::Report;
use crate::scope::{self, Process, Scope};
use crate::symbols::Symbols;
use crate::user_copies;

/// Without any one of these groups, most copies would go unseen. One function of each group is enough.
pub(crate) const ESSENTIAL: [&[&str]; 3] = [
    &["_copy_to_iter"],
    &["_copy_from_iter"],
    // The name changed with folios.
    &["copy_folio_from_iter_atomic", "copy_page_from_iter_atomic"],
];

/// As `bpf/meter.h` defines it: `enum membership`.
const MEMBER: u32 = 1;
const PARENT: u32 = 2;

/// The meter cannot count here.
///
/// [`Meter::attach`] returns it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the copy meter is unavailable ({reason})")]
pub struct Unavailable {
    /// The cause and what to do, in one line.
    pub reason: String,
}

/// A meter that counts until it is dropped.
///
/// ```no_run
/// use std::time::Duration;
/// use handoff_meter::{Meter, Scope};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let meter = Meter::attach(Scope::Machine)?;
/// std::thread::sleep(Duration::from_secs(5));
/// print!("{}", meter.read()?.table());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Meter {
    object: Object,
    links: Vec<Link>,
    /// The functions at which the meter counts, by their numbers.
    pub(crate) functions: Vec<String>,
    pub(crate) missing: Vec<String>,
    scope: Scope,
    /// Whether it counts the C library.
    pub(crate) libc: bool,
    symbols: Mutex<Symbols>,
    /// What was counted before the last program was attached: some programs ran while others were
    /// missing.
    pub(crate) before: Report,
}

impl Meter {
    /// Starts counting, with call paths.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] where the kernel refuses or lacks tracing.
    pub fn attach(scope: Scope) -> Result<Self, Unavailable> {
        Self::attach_with(Options { scope, paths: true, libc: false })
    }

    /// Starts counting.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] where the kernel refuses or lacks tracing.
    pub fn attach_with(options: Options) -> Result<Self, Unavailable> {
        let kernel = Btf::from_vmlinux().map_err(|error| Unavailable {
            reason: format!(
                "no type information in /sys/kernel/btf/vmlinux: {error}; \
                 it needs a kernel with CONFIG_DEBUG_INFO_BTF"
            ),
        })?;
        let mut open = object::open().map_err(|error| Unavailable {
            reason: format!("its object cannot be opened: {error}"),
        })?;
        let functions = object::configure(&mut open, &options);
        let mut missing = Vec::new();
        let traceable = object::functions_of(&kernel);
        for mut program in open.progs_mut() {
            if program.name() == OsStr::new(LIBC) {
                program.set_autoload(options.libc);
                continue;
            }
            if let Some(target) = object::absent(&program, &kernel, &traceable) {
                program.set_autoload(false);
                missing.push(target);
            }
        }
        let object = open.load().map_err(|error| refused("loading", &error))?;
        let symbols = Symbols::of_kernel().map_err(|error| Unavailable {
            reason: format!("/proc/kallsyms cannot be read: {error}; run as root"),
        })?;
        let symbols = Mutex::new(symbols);
        let Options { scope, libc, .. } = options;
        let (links, before) = (Vec::new(), Report::default());
        let mut meter = Self { object, links, functions, missing, scope, libc, symbols, before };
        meter.enter_members().map_err(|error| refused("filling the process tree", &error))?;
        meter.attach_programs()?;
        // Processes that a member started after the first look and before the programs were attached.
        meter.enter_members().map_err(|error| refused("filling the process tree", &error))?;
        meter.before = meter.read().map_err(|error| Unavailable { reason: error.to_string() })?;
        Ok(meter)
    }

    fn attach_programs(&mut self) -> Result<(), Unavailable> {
        let mut errors = BTreeMap::new();
        for program in self.object.progs_mut() {
            if program.name() == OsStr::new(LIBC) {
                if self.libc {
                    let attached = attach_to_libc(&program);
                    self.links.extend(attached.map_err(|reason| Unavailable { reason })?);
                }
                continue;
            }
            if program.name() == OsStr::new(PROCESSES) {
                continue;
            }
            let target = object::target(program.section(), program.name());
            if self.missing.contains(&target) {
                continue;
            }
            let attached = match program.prog_type() {
                ProgramType::PerfEvent => self.attach_to_instruction(&program, &target),
                _ => program.attach().map(|link| vec![link]),
            };
            match attached {
                Ok(links) => self.links.extend(links),
                Err(error) => {
                    tracing::debug!("{target}: {error:#}");
                    self.missing.push(target.clone());
                    errors.insert(target, error);
                }
            }
        }
        let present = |name: &&str| !self.missing.iter().any(|missing| missing == name);
        for group in ESSENTIAL {
            if !group.iter().any(present) {
                let name = group[0];
                return Err(match errors.get(name) {
                    Some(error) => refused(&format!("attaching to {name}"), error),
                    None => Unavailable { reason: format!("this kernel has no {name}") },
                });
            }
        }
        // Another function of the group has taken its place, so nothing is lost.
        self.missing.retain(|name| !ESSENTIAL.iter().any(|group| group.contains(&name.as_str())));
        Ok(())
    }

    /// Attaches to the first instruction of a function.
    fn attach_to_instruction(
        &self,
        program: &ProgramMut<'_>,
        function: &str,
    ) -> libbpf_rs::Result<Vec<Link>> {
        let address = self.symbols().address(function).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no {function} in /proc/kallsyms"))
        })?;
        let events = breakpoint::open(address).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSPC) => io::Error::other(
                "all breakpoints of the processor are taken, by another meter or a debugger: end it",
            ),
            _ => error,
        })?;
        let attach = |event: OwnedFd| {
            let link = program.attach_perf_event(event.as_raw_fd())?;
            // The link closes it.
            let _ = event.into_raw_fd();
            Ok(link)
        };
        events.into_iter().map(attach).collect()
    }

    fn enter_members(&mut self) -> libbpf_rs::Result<()> {
        let (members, membership) = match self.scope {
            Scope::Machine => return Ok(()),
            Scope::Tree(root) => {
                let processes = self.processes()?;
                (scope::with_descendants(scope::id_of(root, &processes), &processes), MEMBER)
            }
            Scope::ChildrenOf(parent) => (scope::id_of(parent, &self.processes()?), PARENT),
            Scope::Cgroup(ref path) => {
                let group = File::open(path)?;
                let key = 0u32.to_ne_bytes();
                let value = group.as_raw_fd().to_ne_bytes();
                return self.map("cgroup").update(&key, &value, MapFlags::ANY);
            }
        };
        let tree = self.map("tree");
        for member in members {
            tree.update(&member.to_ne_bytes(), &membership.to_ne_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    /// The existing processes, in our PID namespace and those below.
    fn processes(&mut self) -> libbpf_rs::Result<Vec<Process>> {
        let program = self.object.progs_mut().find(|it| it.name() == OsStr::new(PROCESSES));
        let link = program.expect("a program of the embedded object").attach()?;
        let mut told = Vec::new();
        Iter::new(&link)?.read_to_end(&mut told)?;
        Ok(Process::all(&told))
    }

    pub(crate) fn symbols(&self) -> MutexGuard<'_, Symbols> {
        self.symbols.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn map(&self, name: &'static str) -> Map<'_> {
        let found = self.object.maps().find(|map| map.name() == OsStr::new(name));
        found.expect("a map of the embedded object")
    }
}

/// Attaches to the C library's copying functions, in all processes that use it.
fn attach_to_libc(program: &ProgramMut<'_>) -> Result<Vec<Link>, String> {
    let attach = |point: user_copies::ProbePoint| {
        let user_copies::ProbePoint { library, offset } = point;
        program
            .attach_uprobe(false, -1, &library, offset)
            .map_err(|error| format!("attaching to {}: {error:#}", library.display()))
    };
    user_copies::probe_points()?.into_iter().map(attach).collect()
}

fn refused(step: &str, error: &libbpf_rs::Error) -> Unavailable {
    let remedy = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if !rustix::process::geteuid().is_root() => {
            "; run as root, or with CAP_BPF and CAP_PERFMON"
        }
        libbpf_rs::ErrorKind::PermissionDenied => {
            "; the kernel or a security module refuses tracing: `handoff lab` boots one that does not"
        }
        // Its text already says what to do.
        libbpf_rs::ErrorKind::Other => "",
        _ => "; `handoff lab` boots a kernel where it works",
    };
    Unavailable {
        reason: format!("{step} is refused: {}{remedy}", one_line(format_args!("{error:#}"))),
    }
}

fn one_line(error: impl Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    #[test]
    fn without_capabilities_it_is_unavailable_and_says_why() {
        // Capabilities belong to a thread, so no other test loses any.
        let refused = std::thread::spawn(|| {
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, none).expect("giving up is always allowed");
            Meter::attach(Scope::Tree(std::process::id())).map(drop)
        });
        let refused = refused.join().expect("no panic").expect_err("tracing needs capabilities");
        let line = refused.to_string();
        assert!(line.starts_with("the copy meter is unavailable ("), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }

    #[test]
    fn a_refusal_is_one_line_with_a_way_out() {
        let error = libbpf_rs::Error::from(io::Error::from_raw_os_error(1));
        let Unavailable { reason } = refused("loading", &error);
        assert!(reason.starts_with("loading is refused: "), "{reason}");
        assert!(reason.contains("; "), "{reason}");
        assert_eq!(reason.lines().count(), 1);
    }
}
