//! Loads the BPF object, attaches its programs, reads its maps.
//!
//! Contracts:
//! - counting begins with [`Meter::attach`] and ends with the drop: the kernel detaches and frees
//!   everything when the descriptors close, so nothing stays behind, also after kill -9;
//! - a kernel that lacks a function is counted without it and says so; one that lacks those that
//!   carry nearly all copies is [`Unavailable`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};

use libbpf_rs::btf::types::{Func, FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType as _};
use libbpf_rs::{
    Link, Map, MapCore as _, MapFlags, Object, ObjectBuilder, OpenObject, OpenProgramMut,
    PrintLevel, ProgramMut, ProgramType,
};

use crate::breakpoint;
use crate::report::{self, Counter, Report, Totals};
use crate::scope::{self, Scope};
use crate::symbols::Symbols;
use crate::user_copies;

/// An ELF file is read in place, as structures.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/meter.bpf.o")));

/// Without any one of these groups, most copies would go unseen. Of each, one is enough.
const ESSENTIAL: [&[&str]; 3] = [
    &["_copy_to_iter"],
    &["_copy_from_iter"],
    // The name changed when folios came.
    &["copy_folio_from_iter_atomic", "copy_page_from_iter_atomic"],
];

/// As `bpf/meter.h` defines them: the size of a name in `place_names`, `enum membership`, and
/// the depth of a stack.
const NAME_SIZE: usize = 32;
const MEMBER: u32 = 1;
const PARENT: u32 = 2;
/// As `bpf/meter.h` defines it: `enum whose`.
const EVERYBODY: u8 = 0;
const TREE: u8 = 1;
const CGROUP: u8 = 2;
/// What has had other arguments on older kernels, with the number of those that our programs take
/// (of a tracepoint, the hidden first one counted).
const ARGUMENTS: [(&str, usize); 2] = [("io_uring_complete", 4), ("__xsk_rcv", 3)];

/// The program of the C library's copies.
const LIBC: &str = "in_libc";

/// How to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whose copies.
    pub scope: Scope,
    /// Whether call paths are told apart, which makes a counted call several times as costly.
    /// Without, [`Report::places`] has one place for each function.
    pub paths: bool,
    /// Whether the C library's copies in user space are counted besides ([`Totals::libc_bytes`]), which
    /// costs a trap for each.
    pub libc: bool,
}

/// The meter cannot count here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the copy meter is unavailable ({reason})")]
pub struct Unavailable {
    /// The cause and what to do, in one line.
    pub reason: String,
}

/// The counters could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the copy meter's {map} cannot be read: {source}")]
pub struct ReadError {
    /// Which BPF map.
    pub map: &'static str,
    /// The kernel's answer.
    pub source: libbpf_rs::Error,
}

/// A meter that counts until it is dropped.
#[derive(Debug)]
pub struct Meter {
    object: Object,
    links: Vec<Link>,
    /// The functions at which copies are counted, by their numbers.
    functions: Vec<String>,
    missing: Vec<String>,
    scope: Scope,
    /// Whether the C library is counted.
    libc: bool,
    symbols: Symbols,
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
        libbpf_rs::set_print(Some((PrintLevel::Debug, log)));
        let kernel = Btf::from_vmlinux().map_err(|error| Unavailable {
            reason: format!(
                "no type information in /sys/kernel/btf/vmlinux: {error}; \
                 it needs a kernel with CONFIG_DEBUG_INFO_BTF"
            ),
        })?;
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(|error| {
            Unavailable { reason: format!("its object cannot be opened: {error}") }
        })?;
        let functions = configure(&mut open, &options);
        let mut missing = Vec::new();
        let traceable = functions_of(&kernel);
        for mut program in open.progs_mut() {
            if program.name() == OsStr::new(LIBC) {
                program.set_autoload(options.libc);
                continue;
            }
            if let Some(target) = absent(&program, &kernel, &traceable) {
                program.set_autoload(false);
                missing.push(target);
            }
        }
        let object = open.load().map_err(|error| refused("loading", &error))?;
        let symbols = Symbols::of_kernel().map_err(|error| Unavailable {
            reason: format!("/proc/kallsyms cannot be read: {error}; run as root"),
        })?;
        let Options { scope, libc, .. } = options;
        let mut meter =
            Self { object, links: Vec::new(), functions, missing, scope, libc, symbols };
        meter.enter_members().map_err(|error| refused("filling the process tree", &error))?;
        meter.attach_programs()?;
        // Whoever was started by a member before the programs were attached, and after the first
        // look.
        meter.enter_members().map_err(|error| refused("filling the process tree", &error))?;
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
            let target = target(program.section(), program.name());
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
        // Nothing is lost where another of the group has taken its place.
        self.missing.retain(|name| !ESSENTIAL.iter().any(|group| group.contains(&name.as_str())));
        Ok(())
    }

    /// Attaches to the first instruction of a function.
    fn attach_to_instruction(
        &self,
        program: &ProgramMut<'_>,
        function: &str,
    ) -> libbpf_rs::Result<Vec<Link>> {
        let address = self.symbols.address(function).ok_or_else(|| {
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

    fn enter_members(&self) -> libbpf_rs::Result<()> {
        let (members, membership) = match &self.scope {
            Scope::Machine => return Ok(()),
            Scope::Tree(root) => (scope::descendants(*root), MEMBER),
            Scope::ChildrenOf(parent) => ([*parent].into(), PARENT),
            Scope::Cgroup(path) => {
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

    /// The sums so far. Costs one system call for each function that is counted, some 25.
    ///
    /// # Errors
    ///
    /// [`ReadError`] where the kernel refuses to show the map.
    pub fn totals(&self) -> Result<Totals, ReadError> {
        Ok(self.totals_of(&self.sums()?))
    }

    /// Everything that was counted so far.
    ///
    /// # Errors
    ///
    /// [`ReadError`] where the kernel refuses to show a map.
    pub fn read(&self) -> Result<Report, ReadError> {
        // Paths first: a sum that is read later is never below what its paths add up to.
        let by_path = self.by_path()?;
        let sums = self.sums()?;
        let totals = self.totals_of(&sums);
        let by_function = self.functions.iter().cloned().zip(sums).collect();
        Ok(Report {
            totals,
            share: totals.share(),
            places: report::places(&by_function, by_path),
            missing: self.missing.clone(),
        })
    }

    /// The map `totals`: one sum for each function, then what was moved, then what nobody is
    /// charged with, then the C library's (`enum place`).
    fn sums(&self) -> Result<Vec<Counter>, ReadError> {
        let totals = self.map("totals");
        let sum_at = |index: usize| {
            let key = u32::try_from(index).expect("few places").to_ne_bytes();
            let of_cpus = totals.lookup_percpu(&key, MapFlags::ANY).map_err(reading("totals"))?;
            Ok(sum(&of_cpus.unwrap_or_default()))
        };
        (0..self.functions.len() + 3).map(sum_at).collect()
    }

    fn totals_of(&self, sums: &[Counter]) -> Totals {
        let (copies, others) = sums.split_at(self.functions.len());
        Totals {
            copied_bytes: copies.iter().map(|sum| sum.bytes).sum(),
            moved_bytes: others[0].bytes,
            unattributed_bytes: others[1].bytes,
            libc_bytes: self.libc.then_some(others[2].bytes),
        }
    }

    fn by_path(&self) -> Result<Vec<(String, Vec<String>, Counter)>, ReadError> {
        let paths = self.map("paths");
        let mut found = Vec::new();
        for key in paths.keys() {
            let Some(of_cpus) =
                paths.lookup_percpu(&key, MapFlags::ANY).map_err(reading("paths"))?
            else {
                continue;
            };
            let place = u32::from_ne_bytes(key[..4].try_into().expect("four bytes")) as usize;
            let stack = i32::from_ne_bytes(key[4..8].try_into().expect("four bytes"));
            let function = self.functions[place].clone();
            let addresses = self.stack(stack)?;
            let names = addresses.iter().filter_map(|address| self.symbols.name(*address));
            let path = callers(&function, names);
            found.push((function, path, sum(&of_cpus)));
        }
        Ok(found)
    }

    fn stack(&self, id: i32) -> Result<Vec<u64>, ReadError> {
        // The kernel's error number where it had no room for the stack.
        if id < 0 {
            return Ok(Vec::new());
        }
        let stack = self
            .map("stacks")
            .lookup(&id.to_ne_bytes(), MapFlags::ANY)
            .map_err(reading("stacks"))?;
        let addresses = stack.unwrap_or_default();
        let words = addresses.chunks_exact(8);
        Ok(words
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .take_while(|address| *address != 0)
            .collect())
    }

    fn map(&self, name: &'static str) -> Map<'_> {
        let found = self.object.maps().find(|map| map.name() == OsStr::new(name));
        found.expect("a map of the embedded object")
    }
}

/// Attaches to the functions of the C library that copy, in all processes that have it.
fn attach_to_libc(program: &ProgramMut<'_>) -> Result<Vec<Link>, String> {
    let attach = |place: user_copies::Place| {
        let user_copies::Place { library, offset } = place;
        program
            .attach_uprobe(false, -1, &library, offset)
            .map_err(|error| format!("attaching to {}: {error:#}", library.display()))
    };
    user_copies::places()?.into_iter().map(attach).collect()
}

/// Writes the configuration into the object, and reads the names of the functions out of it.
fn configure(open: &mut OpenObject, options: &Options) -> Vec<String> {
    let mut functions = Vec::new();
    for mut map in open.maps_mut() {
        if map.name() == OsStr::new(".rodata.names") {
            let names = map.initial_value().expect("a section with content");
            functions = names
                .chunks_exact(NAME_SIZE)
                .map_while(|name| {
                    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
                    (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
                })
                .collect();
        }
        if map.name() == OsStr::new(".rodata.config") {
            let config = map.initial_value_mut().expect("a section with content");
            config[0] = match options.scope {
                Scope::Machine => EVERYBODY,
                Scope::Tree(_) | Scope::ChildrenOf(_) => TREE,
                Scope::Cgroup(_) => CGROUP,
            };
            config[1] = u8::from(options.paths);
        }
    }
    functions
}

/// What a program is attached to: what follows the slash in its section's name, or, for a
/// breakpoint, its own name without `at_`.
fn target(section: &OsStr, name: &OsStr) -> String {
    let (section, name) = (section.to_string_lossy(), name.to_string_lossy());
    match section.split_once('/') {
        Some((_, target)) => target.to_owned(),
        None => name.strip_prefix("at_").unwrap_or(&name).to_owned(),
    }
}

/// The target of a program, if the kernel's type information shows that it cannot be attached;
/// loading would fail then. For breakpoints, attaching tells.
fn absent(
    program: &OpenProgramMut<'_>,
    kernel: &Btf<'_>,
    functions: &BTreeMap<&OsStr, Func<'_>>,
) -> Option<String> {
    let section = program.section().to_string_lossy();
    let (kind, target) = section.split_once('/')?;
    let prototype = match kind {
        "fentry" | "fexit" => functions.get(OsStr::new(target)).map(|func| func.referenced_type()),
        "tp_btf" => kernel
            .type_by_name::<Typedef<'_>>(&format!("btf_trace_{target}"))
            .and_then(|pointer| Ptr::try_from(pointer.referenced_type()).ok())
            .map(|pointer| pointer.referenced_type()),
        _ => return None,
    };
    let arguments = prototype
        .and_then(|prototype| FuncProto::try_from(prototype).ok())
        .map(|prototype| prototype.len());
    let wanted = ARGUMENTS.iter().find(|(name, _)| *name == target).map(|(_, count)| *count);
    let fits = arguments.is_some_and(|count| wanted.is_none_or(|wanted| wanted == count));
    (!fits).then(|| target.to_owned())
}

/// The functions that the kernel's type information describes, by name. (Looking one up by its name
/// finds a structure of the same name instead.)
fn functions_of<'a>(kernel: &'a Btf<'_>) -> BTreeMap<&'a OsStr, Func<'a>> {
    kernel
        .type_by_kind::<Func<'_>>()
        .filter_map(|function| Some((function.name()?, function)))
        .collect()
}

/// The callers in a stack: without programs and trampolines of BPF, without the function itself,
/// without the entry code that all system calls share, and without what the compiler appends to
/// the names of functions that it has changed.
fn callers<'a>(function: &str, stack: impl Iterator<Item = &'a str>) -> Vec<String> {
    const ENTRY: [&str; 4] =
        ["do_syscall_64", "entry_SYSCALL_64_after_hwframe", "x64_sys_call", "ret_from_fork_asm"];
    stack
        .map(|name| name.split('.').next().unwrap_or(name))
        .filter(|name| !name.starts_with("bpf_prog_") && !name.starts_with("bpf_trampoline_"))
        .filter(|name| *name != function && !ENTRY.contains(name))
        .map(str::to_owned)
        .collect()
}

fn sum(of_cpus: &[Vec<u8>]) -> Counter {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    let mut sum = Counter::default();
    for value in of_cpus {
        sum += Counter { bytes: word(&value[..8]), calls: word(&value[8..16]) };
    }
    sum
}

fn reading(map: &'static str) -> impl FnOnce(libbpf_rs::Error) -> ReadError {
    move |source| ReadError { map, source }
}

fn refused(step: &str, error: &libbpf_rs::Error) -> Unavailable {
    let remedy = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if !rustix::process::geteuid().is_root() => {
            "; run as root, or with CAP_BPF and CAP_PERFMON"
        }
        libbpf_rs::ErrorKind::PermissionDenied => {
            "; the kernel or a security module refuses tracing: `handoff lab` boots one that does not"
        }
        // Its own text says what to do.
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

fn log(level: PrintLevel, text: String) {
    let text = text.trim_end();
    match level {
        PrintLevel::Warn | PrintLevel::Info => tracing::debug!("libbpf: {text}"),
        PrintLevel::Debug => tracing::trace!("libbpf: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    fn open() -> OpenObject {
        ObjectBuilder::default().open_memory(&OBJECT.0).expect("an object of our own")
    }

    #[test]
    fn every_place_has_a_program_and_a_name_of_its_own() {
        let mut object = open();
        let options = Options { scope: Scope::Machine, paths: true, libc: false };
        let functions = configure(&mut object, &options);
        assert!(functions.len() > 20, "{functions:?}");
        let targets: Vec<(String, String)> = object
            .progs()
            .map(|program| {
                (program.name().to_string_lossy().into(), target(program.section(), program.name()))
            })
            .collect();
        for (number, function) in functions.iter().enumerate() {
            assert!(function.len() < NAME_SIZE - 1, "{function} may have been cut off");
            assert!(!functions[..number].contains(function), "{function} is there twice");
            let program = targets.iter().find(|(_, target)| target == function);
            assert!(program.is_some_and(|(name, _)| name.starts_with("at_")), "{function}");
        }
        let counting = targets.iter().filter(|(name, _)| name.starts_with("at_")).count();
        assert_eq!(counting, functions.len());
        for name in ESSENTIAL.iter().copied().flatten() {
            assert!(functions.iter().any(|function| function == name), "{name}");
        }
    }

    #[test]
    fn options_reach_the_programs() {
        let mut object = open();
        configure(&mut object, &Options { scope: Scope::Tree(1), paths: false, libc: false });
        let config = object.maps().find(|map| map.name() == OsStr::new(".rodata.config"));
        let config = config.expect("there").initial_value().expect("content").to_vec();
        assert_eq!(config[..2], [1, 0]);
    }

    #[test]
    fn callers_are_told_without_our_own_frames() {
        let stack = [
            "bpf_prog_1234_at_copy",
            "bpf_trampoline_7",
            "copy",
            "read_file.isra.0",
            "bpf_trampoline_8",
            "bpf_iter",
            "do_syscall_64",
            "entry_SYSCALL_64_after_hwframe",
        ];
        let path = callers("copy", stack.into_iter());
        assert_eq!(path, ["read_file", "bpf_iter"]);
    }

    #[test]
    fn processors_are_added_up() {
        let value = |bytes: u64, calls: u64| [bytes.to_ne_bytes(), calls.to_ne_bytes()].concat();
        assert_eq!(sum(&[value(5, 1), value(7, 2)]), Counter { bytes: 12, calls: 3 });
    }

    #[test]
    fn without_capabilities_it_is_unavailable_and_says_why() {
        // Capabilities are a thread's own, so no other test loses any.
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
