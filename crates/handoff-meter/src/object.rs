//! The embedded BPF object: its programs and their targets, its configuration, and which programs this
//! kernel can run.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use libbpf_rs::btf::types::{Func, FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType as _};
use libbpf_rs::{ObjectBuilder, OpenObject, OpenProgramMut, PrintLevel};

use crate::options::Options;
use crate::scope::Scope;

/// An ELF file is read in place, as structures, so it must be aligned.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/meter.bpf.o")));

/// As `bpf/meter.h` defines it: the size of a name in `place_names`.
const NAME_SIZE: usize = 32;
/// As `bpf/meter.h` defines it: `enum whose`.
const EVERYBODY: u8 = 0;
const TREE: u8 = 1;
const CGROUP: u8 = 2;
/// Functions that had other arguments on older kernels, with the number of arguments that our programs
/// expect (for a tracepoint, the hidden first one included).
const ARGUMENTS: [(&str, usize); 2] = [("io_uring_complete", 4), ("__xsk_rcv", 3)];

/// The program that counts the C library's copies.
pub(crate) const LIBC: &str = "in_libc";
/// The program that lists the processes.
pub(crate) const PROCESSES: &str = "list_processes";

/// Opens the object.
pub(crate) fn open() -> libbpf_rs::Result<OpenObject> {
    libbpf_rs::set_print(Some((PrintLevel::Debug, log)));
    ObjectBuilder::default().open_memory(&OBJECT.0)
}

/// Writes the configuration into the object, and reads the functions' names from it.
pub(crate) fn configure(open: &mut OpenObject, options: &Options) -> Vec<String> {
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

/// The target of a program: the part of its section's name after the slash, or, for a breakpoint, the
/// program's name without `at_`.
pub(crate) fn target(section: &OsStr, name: &OsStr) -> String {
    let (section, name) = (section.to_string_lossy(), name.to_string_lossy());
    match section.split_once('/') {
        Some((_, target)) => target.to_owned(),
        None => name.strip_prefix("at_").unwrap_or(&name).to_owned(),
    }
}

/// The target of a program, if the kernel's type information shows that the program cannot be attached;
/// loading would fail then. A breakpoint shows it only when it is attached.
pub(crate) fn absent(
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

/// The functions in the kernel's type information, by name. (A look-up by name would find a structure of
/// the same name instead.)
pub(crate) fn functions_of<'a>(kernel: &'a Btf<'_>) -> BTreeMap<&'a OsStr, Func<'a>> {
    kernel
        .type_by_kind::<Func<'_>>()
        .filter_map(|function| Some((function.name()?, function)))
        .collect()
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
    use super::*;
    use crate::meter::ESSENTIAL;

    #[test]
    fn every_place_has_a_program_and_a_name_of_its_own() {
        let mut object = open().expect("an object of our own");
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
        let mut object = open().expect("an object of our own");
        configure(&mut object, &Options { scope: Scope::Tree(1), paths: false, libc: false });
        let config = object.maps().find(|map| map.name() == OsStr::new(".rodata.config"));
        let config = config.expect("there").initial_value().expect("content").to_vec();
        assert_eq!(config[..2], [1, 0]);
    }
}
