//! Allocations of the kernel that fail when they are told to (`failslab`, `fail_page_alloc`): the
//! sanitizer kernel has them.

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
