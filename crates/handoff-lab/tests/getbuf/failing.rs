//! Allocations of the kernel that fail when they are told to (`failslab`, `fail_page_alloc`): the
//! sanitizer kernel has them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Makes all allocations fail that are asked to; false where the kernel cannot.
pub(crate) fn ready() -> bool {
    if !Path::new("/proc/self/fail-nth").exists() {
        return false;
    }
    let debug = Path::new("/sys/kernel/debug");
    if !debug.join("failslab").exists() {
        let mounted = Command::new("mount").args(["-t", "debugfs", "debugfs"]).arg(debug).status();
        assert!(mounted.is_ok_and(|status| status.success()), "no debugfs");
    }
    let of_both = [("ignore-gfp-wait", "N"), ("verbose", "0")];
    let of_pages = [("min-order", "0"), ("ignore-gfp-highmem", "N")];
    let all =
        [("failslab", &of_both[..]), ("fail_page_alloc", &of_both), ("fail_page_alloc", &of_pages)];
    for (kind, settings) in all {
        for (name, value) in settings {
            std::fs::write(debug.join(kind).join(name), value).expect("sets");
        }
    }
    true
}

/// The counter of the calling thread.
pub(crate) struct Failing(File);

impl Failing {
    pub(crate) fn new() -> Self {
        let path = "/proc/thread-self/fail-nth";
        Self(File::options().read(true).write(true).open(path).expect("opens"))
    }

    /// From here on, the allocation of this number fails.
    pub(crate) fn arm(&self, number: u32) {
        self.0.write_all_at(number.to_string().as_bytes(), 0).expect("sets");
    }

    /// None does any more; whether one has.
    pub(crate) fn disarm(&self) -> bool {
        let mut left = [0; 16];
        let read = self.0.read_at(&mut left, 0).expect("reads");
        self.arm(0);
        std::str::from_utf8(&left[..read]).expect("digits").trim() == "0"
    }
}
