//! A user's mapping in BPF (`bpf/blk_policy.h`): vetted, joined with our loop, its maps kept.
//!
//! Contracts:
//! - the kernel does not check for which ring its functions for the loop are called, so a policy that
//!   called them could crash the kernel. An object is accepted only if it calls no kernel function, refers
//!   to nothing that it does not define, and has no program of its own. The check reads its code after
//!   joining it with ours, since that is what the verifier gets. The verifier checks everything else;
//! - the object is kept beside the device's state, so a later server has the same. A server prepared before
//!   reads it again if it has changed;
//! - maps are pinned, so that they outlive a server, like the data that they lead to.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::ptr;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, libbpf_sys};
use object::elf::SHF_EXECINSTR;
use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{Architecture, RelocationTarget, SectionFlags};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::Error;
use crate::engine::loop_object;
use crate::error::{is_lack, worded};
pub use crate::exchange::{Change, Watch, exchange};
use crate::libbpf_log::{explained, listen, shown};
use crate::object_file;
use crate::pins::pinned;
pub use crate::pins::pins;

/// The function that an object must have.
const FUNCTION: &str = "blk_policy";
/// The section of the loop's program.
const LOOP_PROGRAM: &str = "struct_ops.s/loop_step";
/// Where types are.
const TYPES: &str = ".BTF";
/// What `BLK_POLICY` says of each argument.
const TAG: &[u8] = b"arg:nonnull\0";
/// Where subprograms are.
const TEXT: &str = ".text";

/// A call, and where it says that it calls the kernel.
const CALL: u8 = 0x85;
const CALL_OF_THE_KERNEL: u8 = 2;
/// A call of what a register points to, which the verifier does not know.
const CALL_BY_POINTER: u8 = 0x8d;

/// A policy that has been checked.
#[derive(Debug)]
pub(crate) struct Policy {
    /// Its object.
    pub(crate) object: Vec<u8>,
    /// What it was read from. While it is open, no other file can be mistaken for it.
    file: File,
}

impl Policy {
    /// Reads an object; joins it with the loop's.
    pub(crate) fn read(path: &Path) -> Result<(Self, Vec<u8>), Error> {
        let (file, object) = object_file::read(path)?;
        let joined = checked(path, &object)?;
        Ok((Self { object, file }, joined))
    }

    /// Whether the file at `path` is still the one that it was read from.
    pub(crate) fn lies_at(&self, path: &Path) -> io::Result<bool> {
        let (ours, there) = (self.file.metadata()?, fs::metadata(path)?);
        Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    }
}

/// What was read from `path`, joined with the loop's.
pub(crate) fn checked(path: &Path, object: &[u8]) -> Result<Vec<u8>, Error> {
    joined(object)
        .map_err(|cause| Error::unusable(format!("{} {cause}", path.display())).caused_by(cause))
}

/// An object joined with the loop's, if nothing is wrong with it.
fn joined(object: &[u8]) -> io::Result<Vec<u8>> {
    let refused = |cause: String| io::Error::other(format!("is refused: {cause}"));
    vet(object).map_err(|cause| refused(shown(&cause)))?;
    let joined = link(object)
        .map_err(|error| worded(format!("does not go with the loop: {error}"), is_lack(&error)))?;
    describes_arguments(object).map_err(refused)?;
    look_through(&joined).map_err(refused)?;
    Ok(joined)
}

/// Without optimization clang leaves out the names and the tags of arguments. The kernel then refuses the object, and
/// does not say why.
fn describes_arguments(policy: &[u8]) -> Result<(), String> {
    let file = object::File::parse(policy).map_err(|_| "it is no object file".to_owned())?;
    let types = file.section_by_name(TYPES).and_then(|section| section.data().ok());
    match types.is_some_and(|types| types.windows(TAG.len()).any(|bytes| bytes == TAG)) {
        true => Ok(()),
        false => Err(format!(
            "its type information says nothing of the arguments of {FUNCTION}: define it by BLK_POLICY, and \
             compile it with clang -g -O2"
        )),
    }
}

/// What is wrong with an object, if anything.
fn vet(bytes: &[u8]) -> Result<(), String> {
    let file = object::File::parse(bytes).map_err(|_| "it is no object file".to_owned())?;
    if file.architecture() != Architecture::Bpf || !file.is_little_endian() {
        return Err("it is not built for BPF (clang -target bpf)".to_owned());
    }
    if file.section_by_name(TYPES).is_none() {
        return Err("it has no type information (clang -g)".to_owned());
    }
    for section in file.sections() {
        let name = section.name().unwrap_or_default();
        let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
        if name.starts_with(".struct_ops") || name.starts_with("struct_ops") {
            return Err(format!("it has a section {name}, which is the loop's"));
        }
        if sh_flags & u64::from(SHF_EXECINSTR) != 0 && name != TEXT && section.size() > 0 {
            return Err(format!("it has a program of its own, in section {name}"));
        }
    }
    let defined = |symbol: &object::Symbol<'_, '_>| symbol.is_definition() && symbol.is_global();
    if !file.symbols().any(|symbol| symbol.name() == Ok(FUNCTION) && defined(&symbol)) {
        return Err(format!("it has no function {FUNCTION} (BLK_POLICY)"));
    }
    let unknown = file
        .symbols()
        .find(|symbol| symbol.is_undefined() && symbol.name().is_ok_and(|name| !name.is_empty()));
    if let Some(symbol) = unknown {
        let name = symbol.name().unwrap_or_default();
        return Err(format!(
            "it refers to {name}, which it does not define; functions of the kernel are not for policies"
        ));
    }
    Ok(())
}

/// What is wrong with a policy joined with the loop, which is what the verifier will get: outside the
/// loop's own program, no code may call a kernel function.
fn look_through(joined: &[u8]) -> Result<(), String> {
    let file = object::File::parse(joined).map_err(|_| "it is no object file".to_owned())?;
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
        if sh_flags & u64::from(SHF_EXECINSTR) == 0 {
            continue;
        }
        let name = section.name().unwrap_or_default();
        let code = section.data().unwrap_or_default();
        if !code.len().is_multiple_of(8) {
            return Err("its instructions are cut off".to_owned());
        }
        // The second half of a wide instruction has no operation, so it cannot look like a call.
        let calls_kernel = |code: &[u8]| code[0] == CALL && code[1] >> 4 == CALL_OF_THE_KERNEL;
        if code.chunks_exact(8).any(calls_kernel) {
            return Err("it calls a function of the kernel".to_owned());
        }
        if code.chunks_exact(8).any(|code| code[0] == CALL_BY_POINTER) {
            return Err(
                "it calls by a pointer, as clang does without -O2: compile it with that".to_owned()
            );
        }
        // References of the loop's own program become such calls at loading.
        let symbol = |relocation: &object::Relocation| match relocation.target() {
            RelocationTarget::Symbol(index) => file.symbol_by_index(index).ok(),
            _ => None,
        };
        let is_the_kernels = |relocation: &object::Relocation| {
            symbol(relocation).is_none_or(|symbol| symbol.is_undefined())
        };
        if name != LOOP_PROGRAM && section.relocations().any(|(_, it)| is_the_kernels(&it)) {
            return Err("it refers to what is the kernel's".to_owned());
        }
    }
    let programs = file.sections().filter(|section| section.name() == Ok(LOOP_PROGRAM));
    let ours = object::File::parse(loop_object()).ok();
    let bytes = ours.as_ref().and_then(|ours| ours.section_by_name(LOOP_PROGRAM));
    let size = bytes.map(|section| section.size());
    if !programs.map(|program| Some(program.size())).eq([size]) {
        return Err("it changes the loop's own program".to_owned());
    }
    Ok(())
}

fn link(policy: &[u8]) -> io::Result<Vec<u8>> {
    let memory = memfd_create("handoff-policy", MemfdFlags::CLOEXEC)?;
    listen();
    // Ours first: its function gives way to the policy's.
    join_into(memory.as_raw_fd(), &[loop_object(), policy])
        .map_err(|error| explained(&error.into()))?;
    let mut file = File::from(memory);
    let mut joined = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut joined)?;
    Ok(joined)
}

/// Writes the joined objects to a file. (`libbpf_rs::Linker` panics if an object is refused.)
fn join_into(file: RawFd, objects: &[&[u8]]) -> io::Result<()> {
    let checked = |status: libc::c_int| match status {
        0.. => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    };
    // SAFETY: the file is open, and there are no options.
    let linker = unsafe { libbpf_sys::bpf_linker__new_fd(file, ptr::null_mut()) };
    if linker.is_null() {
        return Err(io::Error::last_os_error());
    }
    let joined = objects.iter().try_for_each(|object| {
        // SAFETY: the linker is live, and the buffer is read within the call.
        checked(unsafe {
            let buffer = object.as_ptr().cast_mut().cast();
            libbpf_sys::bpf_linker__add_buf(linker, buffer, object.len() as _, ptr::null_mut())
        })
    });
    // SAFETY: the linker is live.
    let joined = joined.and_then(|()| checked(unsafe { libbpf_sys::bpf_linker__finalize(linker) }));
    // SAFETY: nobody uses it any more.
    unsafe { libbpf_sys::bpf_linker__free(linker) };
    joined
}

/// Sets values in a map of a device's policy, while it serves.
///
/// Keys and values are numbers of the map's sizes, or their bytes as `hex:00ff...`.
///
/// # Errors
///
/// A device without such a map, and values that do not fit into it.
pub fn set(id: u32, map: &str, pairs: &[(String, String)]) -> Result<(), Error> {
    if !map.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err(Error::invalid(format!("{map} is no name of a map")));
    }
    let path = pins(id).join(map);
    let handle = MapHandle::from_pinned_path(&path).map_err(|error| {
        let known: Vec<_> =
            pinned(id).iter().map(|map| map.to_string_lossy().into_owned()).collect();
        Error::invalid(format!(
            "device {id} has no map {map} ({error}): it has {}",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ))
    })?;
    let (key_size, value_size) = (handle.key_size() as usize, handle.value_size() as usize);
    let mut updates = Vec::new();
    for (key, value) in pairs {
        updates.push((bytes(key, key_size)?, bytes(value, value_size)?));
    }
    for (key, value) in updates {
        handle.update(&key, &value, MapFlags::ANY).map_err(|error| {
            Error::doing(format!("the map {map} does not take a value"))(io::Error::other(error))
        })?;
    }
    Ok(())
}

/// A key or value of so many bytes.
fn bytes(text: &str, size: usize) -> Result<Vec<u8>, Error> {
    let wrong = || {
        Error::invalid(format!(
            "{text} is not {size} bytes: write a number, or hex: and {} digits",
            2 * size
        ))
    };
    if let Some(digits) = text.strip_prefix("hex:") {
        if digits.len() != 2 * size || !digits.is_ascii() {
            return Err(wrong());
        }
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16);
        return (0..size).map(byte).collect::<Result<_, _>>().map_err(|_| wrong());
    }
    let number: u64 = text.parse().map_err(|_| wrong())?;
    let bytes = number.to_le_bytes();
    let fits = size <= 8 && bytes[size..].iter().all(|byte| *byte == 0);
    if fits { Ok(bytes[..size].to_vec()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{self, Program};

    macro_rules! object {
        ($name:literal) => {
            include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")).as_slice()
        };
    }

    #[test]
    fn what_could_bring_the_kernel_down_is_refused() {
        for (object, said) in [
            (object!("kfunc"), "bpf_io_uring_submit_sqes"),
            (object!("program"), "a program of its own, in section raw_tp/sys_enter"),
            (object!("nothing"), "no function blk_policy"),
            (&b"\x7fELF"[..], "no object file"),
            (&std::fs::read("/proc/self/exe").expect("this program"), "not built for BPF"),
        ] {
            let cause = vet(object).unwrap_err();
            assert!(cause.contains(said), "{cause}");
        }
        // The loop itself has everything that a policy must not have.
        assert!(vet(loop_object()).is_err());
    }

    const A_CALL_OF_THE_KERNEL: [u8; 8] = [CALL, CALL_OF_THE_KERNEL << 4, 0, 0, 1, 0, 0, 0];

    /// An object whose first instruction is replaced by another.
    fn forged(honest: &[u8], section: &str, instruction: [u8; 8]) -> Vec<u8> {
        let file = object::File::parse(honest).expect("an object");
        let code = file.section_by_name(section).expect("code").file_range().expect("in it");
        let mut forged = honest.to_vec();
        forged[code.0 as usize..][..8].copy_from_slice(&instruction);
        forged
    }

    #[test]
    fn a_call_that_is_written_by_hand_is_seen() {
        let honest = object!("shard");
        joined(honest).expect("an example");
        let cause = joined(&forged(honest, TEXT, A_CALL_OF_THE_KERNEL));
        let cause = cause.expect_err("refused").to_string();
        assert!(cause.contains("calls a function of the kernel"), "{cause}");
    }

    /// Where the helpers' header declares variables, each call of one is such a call without optimization.
    #[test]
    fn an_object_that_was_not_optimized_is_refused_with_the_remedy() {
        let by_pointer = [CALL_BY_POINTER, 0, 0, 0, 3, 0, 0, 0];
        let cause = joined(&forged(object!("shard"), TEXT, by_pointer));
        let cause = cause.expect_err("refused").to_string();
        assert!(cause.contains("calls by a pointer") && cause.contains("-O2"), "{cause}");
        // The kernel says "BTF loading error" only.
        let mut bare = object!("shard").to_vec();
        let tag = bare.windows(TAG.len()).position(|bytes| bytes == TAG).expect("its tag");
        bare[tag] = b'x';
        let cause = joined(&bare).expect_err("refused").to_string();
        assert!(cause.contains("nothing of the arguments") && cause.contains("-O2"), "{cause}");
    }

    #[test]
    fn a_call_in_a_second_section_of_the_same_name_is_seen() {
        let mut hidden = object!("hidden").to_vec();
        let name = hidden.windows(7).position(|name| name == b"\0.tex2\0").expect("its name");
        hidden[name + 1..][..5].copy_from_slice(TEXT.as_bytes());
        let file = object::File::parse(&*hidden).expect("an object");
        let same = file.sections().filter(|section| section.name() == Ok(TEXT)).count();
        assert_eq!(same, 2);
        vet(&hidden).expect("nothing is wrong with each");
        let cause = joined(&hidden).expect_err("refused").to_string();
        assert!(cause.contains("calls a function of the kernel"), "{cause}");
    }

    /// Checks an object, joins it and opens the result: everything that happens before the kernel has it.
    fn opened(object: &[u8]) -> io::Result<()> {
        engine::open(&Program::of_policy(joined(object)?)).map(drop)
    }

    #[test]
    fn damage_is_no_panic() {
        let whole = object!("sparse");
        opened(whole).expect("an example");
        for len in (0..whole.len()).step_by(7) {
            assert!(opened(&whole[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn damaged_objects_are_refused_or_harmless() {
        let objects = [
            object!("sparse"),
            object!("shard"),
            object!("region"),
            object!("chosen"),
            object!("plain"),
        ];
        let mutants = if std::env::var_os("HANDOFF_SOAK").is_some() { 10_000 } else { 500 };
        let mut refused = 0;
        for seed in 1..=mutants {
            let object = objects[seed as usize % objects.len()];
            if let Err(error) = opened(&mutant(object, seed)) {
                let cause = error.to_string();
                assert!(!cause.is_empty() && !cause.contains(char::is_control), "{seed}: {cause}");
                refused += 1;
            }
        }
        assert!(refused > mutants / 4, "only {refused} of {mutants} were damaged");
    }

    /// A damaged object; the same seed gives the same one.
    fn mutant(object: &[u8], seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % limit
        };
        let mut bytes = object.to_vec();
        let (kind, len) = (below(5), bytes.len());
        // Together in one place, or anywhere.
        let (from, span) = if kind < 3 { (below(len - 480), 480) } else { (0, len) };
        for _ in 0..1 + below(8) {
            let at = from + below(span);
            bytes[at] = match kind {
                0 | 3 => below(256) as u8,
                1 => bytes[at] ^ 1 << below(8),
                2 => 0,
                _ => 0xff,
            };
        }
        bytes
    }

    #[test]
    fn numbers_and_bytes() {
        assert_eq!(bytes("258", 4).unwrap(), [2, 1, 0, 0]);
        assert_eq!(bytes("hex:00ff", 2).unwrap(), [0, 255]);
        for (text, size) in [("256", 1), ("-1", 4), ("hex:0", 1), ("hex:zz", 1), ("x", 4), ("1", 0)]
        {
            assert!(bytes(text, size).is_err(), "{text}");
        }
    }
}
