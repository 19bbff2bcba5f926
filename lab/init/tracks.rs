//! Finds what a command left behind in the guest: mounts, devices, named namespaces, files.
//!
//! Contracts:
//! - what existed before the command does not count;
//! - the kernel removes some things only after their owner is gone, so the check waits a while for them
//!   to vanish;
//! - modules stay loaded, and so do the devices that come with a module.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long the kernel may take to remove what nobody uses any more.
const TIMEOUT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// Directories whose entries are devices and names that a command has to remove again.
const CLASSES: [(&str, &str); 3] = [
    ("/sys/class/net", "network device"),
    ("/sys/block", "block device"),
    ("/run/netns", "network namespace"),
];

/// Directories in which a command may leave no file.
const PLACES: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];

/// The beginnings of names of devices that come and go with a module.
const OF_MODULES: [&str; 14] = [
    "bond", "dummy0", "erspan0", "eth", "gre", "ifb0", "ifb1", "ip6_vti0", "ip_vti0", "loop",
    "nbd", "ram", "sit0", "tunl0",
];

/// What exists.
#[derive(Debug)]
pub(crate) struct Tracks(BTreeSet<String>);

/// Adds the files below a directory; empty directories disturb nobody.
fn files(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files(&entry.path(), found);
        } else {
            found.insert(format!("file {}", entry.path().display()));
        }
    }
}

impl Tracks {
    /// Takes the guest's present state.
    pub(crate) fn look() -> Self {
        let mut found = BTreeSet::new();
        for (directory, what) in CLASSES {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if !OF_MODULES.iter().any(|module| name.starts_with(module)) {
                    found.insert(format!("{what} {name}"));
                }
            }
        }
        PLACES.iter().for_each(|place| files(Path::new(place), &mut found));
        for line in fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines() {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            // It comes with the first module that needs it, and stays.
            if kind != "configfs" {
                found.insert(format!("mount of {kind} at {place}"));
            }
        }
        Self(found)
    }

    /// What exists now and did not exist then, one thing a line; empty if there is nothing.
    pub(crate) fn left(&self) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let now = Self::look();
            let left: Vec<&str> = now.0.difference(&self.0).map(String::as_str).collect();
            if left.is_empty() || Instant::now() > deadline {
                return left.join("\n");
            }
            thread::sleep(LOOK);
        }
    }
}
