//! Whose copies are counted.
//!
//! Kernel interface: `/proc/PID/stat`, for the processes that exist when the meter is attached.
//! Later ones are followed in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// Whose copies are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Everything that runs, kernel threads and interrupts too.
    Machine,
    /// The process with this id and all its descendants, those that exist and those to come.
    Tree(u32),
    /// All processes that the one with this id starts from now on, and their descendants; not the
    /// process itself.
    ChildrenOf(u32),
    /// All processes in the control group with this directory (of the unified hierarchy), and in those
    /// below it, at the time of each copy.
    Cgroup(PathBuf),
}

/// Whether the process is there and has not ended.
pub(crate) fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| state_in(&stat).is_some_and(|state| !matches!(state, "Z" | "X")))
}

/// The process and its present descendants.
pub(crate) fn descendants(root: u32) -> BTreeSet<u32> {
    let mut members = BTreeSet::from([root]);
    with_descendants(&mut members, &parents());
    members
}

/// Process id to parent's id, of all processes that can be seen.
fn parents() -> BTreeMap<u32, u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            // A process that has ended meanwhile has no children to follow.
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((process, parent_in(&stat)?))
        })
        .collect()
}

/// The third field; the second is the command in parentheses, which may contain anything.
fn state_in(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().next()
}

/// The fourth field.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn with_descendants(members: &mut BTreeSet<u32>, parents: &BTreeMap<u32, u32>) {
    loop {
        let before = members.len();
        for (process, parent) in parents {
            if members.contains(parent) {
                members.insert(*process);
            }
        }
        if members.len() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_hides_no_parent() {
        assert_eq!(parent_in("7 (a b) c)) S 42 7 7 0 -1"), Some(42));
        assert_eq!(state_in("7 (a b) c)) S 42 7 7 0 -1"), Some("S"));
        assert_eq!(parent_in("garbage"), None);
    }

    #[test]
    fn all_generations_are_found_and_nobody_else() {
        let parents = BTreeMap::from([(2, 9), (3, 1), (4, 3), (5, 4), (9, 1), (10, 0)]);
        let mut members = BTreeSet::from([3]);
        with_descendants(&mut members, &parents);
        assert_eq!(members, BTreeSet::from([3, 4, 5]));
    }

    #[test]
    fn this_process_is_its_own_descendant_and_a_child_is_one() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let found = descendants(std::process::id());
        assert!(is_alive(child.id()));
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(!is_alive(child.id()));
        assert!(found.contains(&std::process::id()));
        assert!(found.contains(&child.id()));
        assert!(!found.contains(&1));
    }
}
