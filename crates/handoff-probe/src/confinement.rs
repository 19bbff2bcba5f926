//! What keeps this process from what root of the machine may do: a user namespace, as rootless container engines
//! make it, capabilities that are gone for good, and a filter of system calls.
//!
//! Kernel interface: `/proc/self/uid_map` and `/proc/thread-self/status`.

use std::fs;

use super::answer::{Answer, Finding};
use super::memory::in_inner_user_namespace;

/// Capabilities that parts of the project need, with their numbers, and what goes without them.
const NEEDED: [(&str, u32, &str); 8] = [
    ("CAP_SYS_ADMIN", 21, "block devices, namespaces"),
    ("CAP_NET_ADMIN", 12, "queues of network cards"),
    ("CAP_IPC_LOCK", 14, "memory beyond the limit of locked memory"),
    ("CAP_SYS_MODULE", 16, "loading kernel modules"),
    ("CAP_SYS_RESOURCE", 24, "limits of one's own"),
    ("CAP_PERFMON", 38, "the copy meter"),
    ("CAP_BPF", 39, "BPF programs"),
    ("CAP_NET_BIND_SERVICE", 10, "ports below 1024"),
];

pub(super) fn user_namespace() -> Finding {
    if !in_inner_user_namespace() {
        return Ok(Answer::yes());
    }
    Ok(inner(&read("/proc/self/uid_map")?))
}

pub(super) fn capabilities() -> Finding {
    of_bounding_set(field(&read("/proc/thread-self/status")?, "CapBnd:")?)
}

pub(super) fn filter() -> Finding {
    of_seccomp(field(&read("/proc/thread-self/status")?, "Seccomp:")?)
}

/// In a user namespace with this map of users.
fn inner(map: &str) -> Answer {
    let root = map.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "0").then(|| words.next()).flatten()
    });
    let who =
        root.map_or("has no root".to_owned(), |user| format!("its root is user {user} outside"));
    Answer::no(format!(
        "this is a user namespace, {who}: no block devices, BPF, kernel modules or queues of the host's network cards, \
         and the limit of locked memory counts"
    ))
    .remedy("run it outside, or by a container engine that root runs without user namespaces")
}

fn of_bounding_set(set: &str) -> Finding {
    let set = u64::from_str_radix(set, 16).map_err(|_| {
        Answer::unknown(format!("/proc/thread-self/status has a set of capabilities {set}"))
    })?;
    let gone: Vec<_> = NEEDED.iter().filter(|(_, bit, _)| set & 1 << bit == 0).collect();
    if gone.is_empty() {
        return Ok(Answer::yes());
    }
    let told: Vec<_> =
        gone.iter().map(|(name, _, without)| format!("{name} ({without})")).collect();
    let names: Vec<_> =
        gone.iter().map(|(name, ..)| format!("--cap-add {}", &name["CAP_".len()..])).collect();
    Ok(Answer::no(format!("no process in here can have {}", told.join(", ")))
        .remedy(format!("a container with {}", names.join(" "))))
}

fn of_seccomp(mode: &str) -> Finding {
    match mode {
        "0" => Ok(Answer::yes()),
        "2" => Ok(Answer::no("a seccomp filter is in force, and may refuse system calls").remedy(
            "a container with --security-opt seccomp=handoff.json, which is below /usr/share/handoff/seccomp",
        )),
        other => Ok(Answer::no(format!("seccomp's mode is {other}"))),
    }
}

fn read(path: &str) -> Result<String, Answer> {
    fs::read_to_string(path).map_err(|error| Answer::unknown(format!("{path}: {error}")))
}

fn field<'a>(status: &'a str, name: &str) -> Result<&'a str, Answer> {
    let found = status.lines().find_map(|line| line.strip_prefix(name));
    found
        .map(str::trim)
        .ok_or_else(|| Answer::unknown(format!("/proc/thread-self/status has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    fn told(finding: Finding) -> (State, String) {
        let answer = finding.unwrap_or_else(|answer| answer);
        (answer.state, answer.in_one_line())
    }

    #[test]
    fn a_namespace_of_users_is_told_with_who_is_root() {
        for (map, who) in [("0 1000 1\n", "user 1000"), ("1000 1000 1\n1 2 3\n", "has no root")] {
            let (state, text) = told(Ok(inner(map)));
            assert!(state == State::No && text.contains(who), "{text}");
        }
    }

    #[test]
    fn capabilities_that_are_gone_are_named() {
        assert_eq!(told(of_bounding_set("000001ffffffffff")).0, State::Yes);
        // What Docker leaves.
        let (state, text) = told(of_bounding_set("00000000a80425fb"));
        assert!(state == State::No && text.contains("CAP_SYS_ADMIN (block devices"), "{text}");
        assert!(text.contains("--cap-add BPF") && !text.contains("BIND"), "{text}");
        assert_eq!(told(of_bounding_set("?")).0, State::Unknown);
    }

    #[test]
    fn a_filter_is_told() {
        assert_eq!(told(of_seccomp("0")).0, State::Yes);
        assert_eq!(told(of_seccomp("2")).0, State::No);
    }
}
