//! Reads the counts from the maps, and names them.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore as _, MapFlags};

use crate::meter::Meter;
use crate::report::{self, Counter, Report, Totals};

/// As `bpf/meter.h` defines it: set in the place of a path.
const NOBODYS: u32 = 0x8000_0000;

/// A function's name, its callers, and what it copied.
type ByPath = (String, Vec<String>, Counter);

/// The counters could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the copy meter's {map} cannot be read: {source}")]
pub struct ReadError {
    /// Which BPF map.
    pub map: &'static str,
    /// The kernel's answer.
    pub source: libbpf_rs::Error,
}

impl Meter {
    /// The sums so far. Costs one system call for each of the some 25 counted functions.
    ///
    /// # Errors
    ///
    /// [`ReadError`] where the kernel refuses to show the map.
    pub fn totals(&self) -> Result<Totals, ReadError> {
        Ok(self.totals_of(&self.sums()?).since(self.before.totals))
    }

    /// Everything counted so far.
    ///
    /// # Errors
    ///
    /// [`ReadError`] where the kernel refuses to show a map.
    pub fn read(&self) -> Result<Report, ReadError> {
        // Paths first: then a sum, read later, is never below what its paths add up to.
        let (by_path, nobodys) = self.by_path()?;
        let sums = self.sums()?;
        let totals = self.totals_of(&sums);
        let by_function = self.functions.iter().cloned().zip(sums).collect();
        let all = Report {
            totals,
            share: totals.share(),
            places: report::places(&by_function, by_path),
            unattributed_places: report::places(&BTreeMap::new(), nobodys),
            missing: self.missing.clone(),
        };
        Ok(all.since(&self.before))
    }

    /// The map `totals`: one sum for each function, then the moved bytes, then the unattributed ones,
    /// then the C library's (`enum place`).
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

    /// What the counted processes copied, and what kernel threads copied for unknown parties.
    fn by_path(&self) -> Result<(Vec<ByPath>, Vec<ByPath>), ReadError> {
        let paths = self.map("paths");
        let (mut found, mut nobodys) = (Vec::new(), Vec::new());
        let mut symbols = self.symbols();
        if let Err(error) = symbols.refresh() {
            tracing::debug!("the kernel's symbols are those of before: {error}");
        }
        for key in paths.keys() {
            let Some(of_cpus) =
                paths.lookup_percpu(&key, MapFlags::ANY).map_err(reading("paths"))?
            else {
                continue;
            };
            let place = u32::from_ne_bytes(key[..4].try_into().expect("four bytes"));
            let stack = i32::from_ne_bytes(key[4..8].try_into().expect("four bytes"));
            let function = self.functions[(place & !NOBODYS) as usize].clone();
            let addresses = self.stack(stack)?;
            let names = addresses.iter().filter_map(|address| symbols.name(*address));
            let path = callers(&function, names);
            let whose = if place & NOBODYS == 0 { &mut found } else { &mut nobodys };
            whose.push((function, path, sum(&of_cpus)));
        }
        Ok((found, nobodys))
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
}

/// The callers in a stack: without BPF programs and trampolines, the function itself, the entry code
/// that all system calls share, and the suffixes that the compiler appends to functions that it has
/// changed.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
