//! Kernel allocations that fail on request (`failslab`, `fail_page_alloc`): the sanitizer kernel has them.

use std::path::Path;
use std::process::Command;

const DEBUG: &str = "/sys/kernel/debug";
const KINDS: [&str; 2] = ["failslab", "fail_page_alloc"];

/// Makes all requested allocations fail; false if the kernel cannot. Spares files in `/proc` about an
/// interrupt: the kernel goes on without them, and warns when it must remove them.
pub(crate) fn ready() -> bool {
    if !Path::new("/proc/self/fail-nth").exists() {
        return false;
    }
    let debug = Path::new(DEBUG);
    if !debug.join("failslab").exists() {
        let mounted = Command::new("mount").args(["-t", "debugfs", "debugfs"]).arg(debug).status();
        assert!(mounted.is_ok_and(|status| status.success()), "no debugfs");
    }
    let (start, end) = code_of("register_irq_proc");
    set("reject-start", &format!("{start:#x}"));
    set("reject-end", &format!("{end:#x}"));
    set("ignore-gfp-wait", "N");
    set("verbose", "0");
    for (name, value) in [("min-order", "0"), ("ignore-gfp-highmem", "N")] {
        std::fs::write(debug.join("fail_page_alloc").join(name), value).expect("sets");
    }
    true
}

/// Beginning and end of a kernel function's code.
fn code_of(function: &str) -> (u64, u64) {
    let symbols = std::fs::read_to_string("/proc/kallsyms").expect("reads");
    let all = symbols.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((address, words.nth(1)?))
    });
    let all: Vec<_> = all.collect();
    let (start, _) = all.iter().find(|(_, name)| *name == function).expect("it is there");
    let end = all.iter().map(|(address, _)| *address).filter(|address| address > start).min();
    (*start, end.expect("something is behind it"))
}

/// Of allocations of both kinds.
fn set(name: &str, value: &str) {
    for kind in KINDS {
        let path = Path::new(DEBUG).join(kind).join(name);
        std::fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// While this exists, allocations made or caused by a module's code fail at random, in any task: also in
/// workers of rings, which a task's own counter does not reach.
pub(crate) struct AtRandom;

impl AtRandom {
    pub(crate) fn below(module: &str, percent: u32) -> Self {
        let modules = std::fs::read_to_string("/proc/modules").expect("reads");
        let line = modules.lines().find(|line| line.split(' ').next() == Some(module));
        let words: Vec<_> = line.expect("the module is loaded").split(' ').collect();
        let size: u64 = words[1].parse().expect("a size");
        let start = words[5].trim_start_matches("0x");
        let start = u64::from_str_radix(start, 16).expect("an address");
        set("require-start", &format!("{start:#x}"));
        set("require-end", &format!("{:#x}", start + size));
        set("times", "-1");
        set("probability", &percent.to_string());
        Self
    }
}

impl Drop for AtRandom {
    fn drop(&mut self) {
        set("probability", "0");
        set("require-start", "0");
        set("require-end", &format!("{:#x}", u64::MAX));
    }
}
