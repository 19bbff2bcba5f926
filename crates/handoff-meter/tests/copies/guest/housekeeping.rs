//! What the kernel copies to keep its memory in order, and for nobody.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use handoff_meter::{Scope, Totals};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::counting::{SIZE, counting, myself};

const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";
const LONG: Duration = Duration::from_secs(60);

#[test]
fn who_makes_huge_pages_of_small_ones_copies_for_no_tree() {
    let of_tree = {
        let counting = counting!(myself());
        counting.during(collapse)
    };
    assert!(of_tree.copied_bytes + of_tree.unattributed_bytes < SIZE as u64 / 8, "{of_tree:?}");
    let of_machine: Totals = counting!(Scope::Machine).during(collapse);
    assert!(of_machine.copied_bytes >= SIZE as u64 / 2, "{of_machine:?}");
}

/// Makes `khugepaged` copy most of [`SIZE`] bytes of this process into huge pages.
fn collapse() {
    let _hurry = ["scan_sleep_millisecs", "alloc_sleep_millisecs"].map(Hurried::new);
    let memory = SmallPages::new();
    let before = in_huge_pages();
    memory.advise(Advice::LinuxHugepage);
    let begun = Instant::now();
    while in_huge_pages() < before + SIZE / 2 {
        assert!(begun.elapsed() < LONG, "{before} and now {} bytes in huge pages", in_huge_pages());
        sleep(Duration::from_millis(20));
    }
}

/// Bytes of this process in huge pages. Each look is a copy too, of less than a kilobyte.
fn in_huge_pages() -> usize {
    let all = fs::read_to_string("/proc/self/smaps_rollup").expect("ours");
    let kib = all.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = kib.and_then(|rest| rest.trim().strip_suffix(" kB")).expect("kibibytes");
    kib.parse::<usize>().expect("a number") << 10
}

/// A setting of `khugepaged` at its minimum; dropping this restores it.
struct Hurried {
    path: String,
    before: String,
}

impl Hurried {
    fn new(name: &str) -> Self {
        let path = format!("{KHUGEPAGED}/{name}");
        let before = fs::read_to_string(&path).expect("a kernel with huge pages");
        fs::write(&path, "1").expect("root");
        Self { path, before }
    }
}

impl Drop for Hurried {
    fn drop(&mut self) {
        fs::write(&self.path, &self.before).expect("as it was");
    }
}

/// [`SIZE`] bytes and a huge page, all of them there.
struct SmallPages(*mut u8);

impl SmallPages {
    const LEN: usize = SIZE + (2 << 20);

    fn new() -> Self {
        // SAFETY: memory that nobody else has; it is unmapped when this is dropped.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                Self::LEN,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let memory = Self(start.expect("there is memory").cast());
        memory.advise(Advice::LinuxNoHugepage);
        for offset in (0..Self::LEN).step_by(4_096) {
            // SAFETY: within what was mapped, and no reference to it exists.
            unsafe { memory.0.add(offset).write_volatile(7) };
        }
        memory
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: what is advised here changes which pages the memory has, and not its bytes.
        unsafe { rustix::mm::madvise(self.0.cast(), Self::LEN, advice) }.expect("advises");
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and used by nobody else.
        unsafe { rustix::mm::munmap(self.0.cast(), Self::LEN) }.expect("ours");
    }
}
