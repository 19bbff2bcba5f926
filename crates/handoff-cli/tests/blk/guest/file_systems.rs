//! File systems on devices, under loads of all kinds.

use std::process::Command;
use std::thread;

use super::command::{Added, ENGINES, Files, driver_or_skip, nothing_is_left};

#[track_caller]
pub(super) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {text}{errors}");
}

/// A file system on a device, with what makes it and what finds fault with it.
struct FileSystem {
    name: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const FILE_SYSTEMS: [FileSystem; 2] = [
    FileSystem {
        name: "ext4",
        make: &["mkfs.ext4", "-q", "-F"],
        check: &["fsck.ext4", "-f", "-n"],
    },
    FileSystem { name: "xfs", make: &["mkfs.xfs", "-q", "-f"], check: &["xfs_repair", "-n"] },
];

/// Has stress-ng write, read back, rename, preallocate and remove, several of each at once.
fn holds(file_system: &FileSystem, engine: &str, seconds: &str) {
    let files = Files::new(1, 320 << 20);
    let device = Added::new(&["loop", files.name(0), "--engine", engine, "--queues", "2"]);
    let node = device.node();
    let on_node = |command: &[&str]| run(command[0], &[&command[1..], &[&node]].concat());
    on_node(file_system.make);
    let point = tempfile::tempdir().expect("a directory");
    let path = point.path().to_str().expect("UTF-8");
    run("mount", &["-t", file_system.name, &node, path]);
    let mut load = vec!["--temp-path", path, "--timeout", seconds, "--verify", "--oomable"];
    load.extend(["--hdd", "1", "--hdd-bytes", "16m", "--iomix", "1", "--iomix-bytes", "16m"]);
    load.extend(["--aio", "1", "--dentry", "1", "--dentries", "256", "--rename", "1"]);
    load.extend(["--fallocate", "1", "--fallocate-bytes", "16m"]);
    run("stress-ng", &load);
    run("umount", &[path]);
    on_node(file_system.check);
    let show = device.show();
    let queues = show["counters"].as_array().expect("queues");
    assert!(queues.iter().all(|queue| queue["errors"] == 0), "{engine}: {show}");
    device.del();
}

/// Four devices at once, each with another engine. Long, each engine has both file systems, one after the other.
#[test]
fn file_systems_are_whole_after_loads_of_all_kinds() {
    driver_or_skip!();
    let (rounds, seconds) = match std::env::var_os("HANDOFF_SOAK") {
        Some(_) => (2, "60"),
        None => (1, "3"),
    };
    for round in 0..rounds {
        thread::scope(|scope| {
            for (number, engine) in ENGINES.iter().enumerate() {
                let file_system = &FILE_SYSTEMS[(number + round) % 2];
                scope.spawn(|| holds(file_system, engine, seconds));
            }
        });
    }
    nothing_is_left();
}
