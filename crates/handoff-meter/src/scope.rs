//! Whose copies are counted.
//!
//! Kernel interface: a BPF iterator over tasks, for the processes that exist when the meter is attached;
//! the kernel follows later ones. The kernel counts by the ids of its first PID namespace, while you
//! name processes by the ids of your own: the iterator tells both.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Whose copies are counted.
///
/// [`Meter::attach`](crate::Meter::attach) takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The whole machine, with kernel threads and interrupts.
    Machine,
    /// The process with this id and all its descendants, present and future. The id is that of the
    /// caller's PID namespace; descendants may be in others.
    Tree(u32),
    /// All processes that the one with this id starts from now on, and their descendants; not the
    /// process itself.
    ChildrenOf(u32),
    /// All processes in the control group with this directory (of the unified hierarchy), and in those
    /// below it, at the time of each copy.
    Cgroup(PathBuf),
}

/// Whether the process exists and has not ended.
pub fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| state_in(&stat).is_some_and(|state| !matches!(state, "Z" | "X")))
}

/// A process, as `bpf/meter.h` defines it: `struct process`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// The kernel's id.
    id: u32,
    /// The kernel's id of its parent.
    parent: u32,
    /// Its id in our PID namespace.
    number: u32,
}

impl Process {
    /// All processes that the iterator lists.
    pub(crate) fn all(bytes: &[u8]) -> Vec<Self> {
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("a word's bytes"));
        let words: Vec<u32> = bytes.chunks_exact(size_of::<u32>()).map(word).collect();
        let process = |words: &[u32]| Self { id: words[0], parent: words[1], number: words[2] };
        words.chunks_exact(3).map(process).collect()
    }
}

/// The kernel's id of the process with this number, if it exists.
pub(crate) fn id_of(number: u32, processes: &[Process]) -> BTreeSet<u32> {
    processes.iter().filter(|it| it.number == number).map(|it| it.id).collect()
}

/// Adds all descendants.
pub(crate) fn with_descendants(mut members: BTreeSet<u32>, processes: &[Process]) -> BTreeSet<u32> {
    loop {
        let before = members.len();
        for process in processes {
            if members.contains(&process.parent) {
                members.insert(process.id);
            }
        }
        if members.len() == before {
            return members;
        }
    }
}

/// The third field; the second is the command in parentheses, which may contain anything.
fn state_in(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_hides_no_state() {
        assert_eq!(state_in("7 (a b) c)) S 42 7 7 0 -1"), Some("S"));
        assert_eq!(state_in("garbage"), None);
    }

    #[test]
    fn all_generations_are_found_and_nobody_else() {
        let told = [[2, 9, 1], [3, 1, 5], [4, 3, 3], [5, 4, 6], [9, 1, 2], [10, 0, 9]];
        let bytes: Vec<u8> = told.concat().into_iter().flat_map(u32::to_ne_bytes).collect();
        let processes = Process::all(&bytes);
        assert_eq!(id_of(5, &processes), BTreeSet::from([3]));
        assert_eq!(with_descendants([3].into(), &processes), BTreeSet::from([3, 4, 5]));
        assert_eq!(id_of(4, &processes), BTreeSet::new());
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("infinity").spawn().expect("sleep");
        assert!(is_alive(child.id()));
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(!is_alive(child.id()));
    }
}
