//! What is kept in memory is charged before it is there, and goes back if it is not lent.

use std::fs::{self, File, OpenOptions};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Disk, NullDisk};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::device::{
    Device, Lending, Parameter, SOURCE, direct, free_memory, in_memory, on_disk, write,
};

const MIB: u64 = 1 << 20;
const LENDS: u16 = 64;

/// Takes lends of a page from places 4 MiB apart, and then in place of each as much as there is; returns
/// how much memory is gone.
fn hoard(lending: &mut Lending, id: u16) -> u64 {
    let before = free_memory();
    let place = |slot: u16| u64::from(slot) * 4 * MIB;
    for slot in 0..LENDS {
        assert_eq!(lending.run(lending.get(slot, id, place(slot), 4_096)), 4_096);
    }
    for slot in 0..LENDS {
        assert_eq!(lending.run(lending.put(slot)), 0);
        let lent = lending.run(lending.get(slot, id, place(slot), 4 * MIB as u32));
        assert_eq!(lent, 4_096, "of {slot}");
    }
    let query = lending.device.query();
    assert_eq!((query.lends, query.bytes), (LENDS.into(), 4_096 * u64::from(LENDS)), "{query:?}");
    before.saturating_sub(free_memory())
}

fn empty(lending: &mut Lending) {
    for slot in 0..LENDS {
        assert_eq!(lending.run(lending.put(slot)), 0);
    }
    assert_eq!(lending.until_all_are_back().bytes, 0);
}

/// Files of 256 MiB: one in the page cache, if anywhere, and one that is read past it.
struct Sources {
    ids: [u16; 2],
    _disk: NullDisk,
}

impl Sources {
    fn of(device: &Device) -> Self {
        let disk = NullDisk::new(256, 4_096, 1).expect("a disk");
        let cached = on_disk();
        cached.set_len(256 * MIB).expect("extends");
        // Folios are then pages.
        rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::Random).expect("advises");
        let bind = |file: &File| device.bind(file, SOURCE).expect("binds");
        Self { ids: [bind(&cached), bind(&past_the_cache(&disk))], _disk: disk }
    }
}

fn past_the_cache(disk: &NullDisk) -> File {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(disk.path());
    file.expect("opens")
}

#[test]
fn what_was_read_beyond_the_limit_does_not_stay() {
    let mut lending = Lending::new();
    let sources = Sources::of(&lending.device);
    let _limit = Parameter::set("bytes", 4_096 * u64::from(LENDS));
    for id in sources.ids {
        let gone = hoard(&mut lending, id);
        assert!(gone < 32 * MIB, "{gone} bytes for {LENDS} pages of source {id}");
        empty(&mut lending);
    }
}

#[test]
fn what_was_read_beyond_the_limit_of_locked_memory_does_not_stay() {
    let mut lending = Lending::new();
    let sources = Sources::of(&lending.device);
    let limit = Some(4_096 * u64::from(LENDS));
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).expect("sets");
    // Root is charged for nothing; these credentials are.
    // SAFETY: changes the user of this process, which runs no other test.
    assert_eq!(unsafe { libc::seteuid(65_534) }, 0);
    let other = lending.ring.submitter().register_personality().expect("registers");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::seteuid(0) }, 0);
    for id in sources.ids {
        let before = free_memory();
        for slot in 0..LENDS {
            let place = u64::from(slot) * 4 * MIB;
            let get = lending.get(slot, id, place, 4 * MIB as u32).personality(other);
            let lent = lending.run(get);
            let wanted = if slot == 0 { 4_096 * i32::from(LENDS) } else { -libc::ENOMEM };
            assert_eq!(lent, wanted, "of {slot}");
        }
        let gone = before.saturating_sub(free_memory());
        assert!(gone < 32 * MIB, "{gone} bytes for {LENDS} pages of source {id}");
        assert_eq!(lending.run(lending.put(0)), 0);
        lending.until_all_are_back();
    }
}

/// A short file: what it does not have is charged for no longer than it is read.
#[test]
fn what_a_file_does_not_have_is_not_charged() {
    let mut lending = Lending::new();
    let id = lending.device.bind(&direct(&[1; 5_000]), SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(0, id, 0, 4 * MIB as u32)), 5_000);
    // At most a segment.
    assert!(lending.device.query().bytes <= 32 << 10, "{:?}", lending.device.query());
    let made = File::open("/proc/version").expect("opens");
    let id = lending.device.bind(&made, SOURCE).expect("binds");
    let before = lending.device.query().bytes;
    assert!(lending.run(lending.get(1, id, 0, MIB as u32)) > 0);
    assert_eq!(lending.device.query().bytes, before + 4_096);
    assert_eq!(lending.run(lending.get(2, id, 4_096, MIB as u32)), 0);
    assert_eq!(lending.device.query().bytes, before + 4_096);
    let target = in_memory();
    assert_eq!(lending.run(write(0, &target, 0, 5_000, 0)), 5_000);
    for slot in [0, 1] {
        assert_eq!(lending.run(lending.put(slot)), 0);
    }
    assert_eq!(lending.until_all_are_back().bytes, 0);
}

#[test]
fn many_at_once_keep_no_more_than_one() {
    const LIMIT: u64 = 2 * MIB;
    let device = Device::alone();
    let _limit = Parameter::set("bytes", LIMIT);
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut lending = Lending::new();
                let sources = Sources::of(&lending.device);
                let id = sources.ids[thread % 2];
                for turn in 0..40 {
                    let slot = turn % 4;
                    let _ = lending.run(lending.put(slot));
                    let place = u64::from(turn) * 4 * MIB;
                    let lent = lending.run(lending.get(slot, id, place, MIB as u32));
                    assert!(lent > 0 || lent == -libc::ENOBUFS, "{lent}");
                    let kept = lending.device.query().user_bytes;
                    assert!(kept <= LIMIT, "{kept}");
                }
            });
        }
    });
    eventually("all lends are back", || (device.query().module_lends == 0).then_some(()));
    assert_eq!(device.query().user_bytes, 0);
}

/// A control group with this process in it.
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let root = PathBuf::from("/sys/fs/cgroup");
        fs::write(root.join("cgroup.subtree_control"), "+memory +io").expect("passes them on");
        let group = Self(root.join(format!("getbuf-{}", std::process::id())));
        fs::create_dir(&group.0).expect("makes");
        group.set("cgroup.procs", "0");
        group
    }

    fn set(&self, name: &str, value: &str) {
        fs::write(self.0.join(name), value).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// Memory of the kernel that the group is charged for.
    fn of_kernel(&self) -> u64 {
        let told = fs::read_to_string(self.0.join("memory.stat")).expect("reads");
        let kernel = told.lines().find_map(|line| line.strip_prefix("kernel ")).expect("told");
        kernel.parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // This process leaves it; the directory goes with what is left in it.
        let _ = fs::write("/sys/fs/cgroup/cgroup.procs", "0");
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn pages_that_a_file_reads_into_are_charged_to_the_memory_group() {
    let group = Group::new();
    let mut lending = Lending::new();
    let sources = Sources::of(&lending.device);
    let [_, past] = sources.ids;
    let before = group.of_kernel();
    for slot in 0..4 {
        let lent = lending.run(lending.get(slot, past, 0, 4 * MIB as u32));
        assert_eq!(lent, 4 * MIB as i32);
    }
    // Meanwhile the kernel may give back a few pages of its own, such as those of page tables.
    let charged = group.of_kernel() - before;
    assert!(charged >= 15 * MIB, "{charged}");
}

#[test]
fn a_read_that_waits_is_charged_already() {
    let group = Group::new();
    let disk = NullDisk::new(64, 4_096, 1).expect("a disk");
    let number = fs::metadata(disk.path()).expect("is there").st_rdev();
    let number = format!("{}:{}", libc::major(number), libc::minor(number));
    group.set("io.max", &format!("{number} rbps=1"));
    let mut lending = Lending::new();
    let id = lending.device.bind(&past_the_cache(&disk), SOURCE).expect("binds");
    let _limit = Parameter::set("bytes", 4 * MIB);
    let waits = lending.get(0, id, 0, 4 * MIB as u32);
    lending.submit(&[waits]);
    eventually("it is charged", || (lending.device.query().bytes == 4 * MIB).then_some(()));
    assert_eq!(lending.run(lending.get(1, id, 0, 4_096)), -libc::ENOBUFS);
    assert_eq!(lending.device.query().lent, 0);
    group.set("io.max", &format!("{number} rbps=max"));
    assert_eq!(lending.wait(1)[0].result(), 4 * MIB as i32);
}
