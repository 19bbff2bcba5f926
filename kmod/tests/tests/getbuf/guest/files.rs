use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::thread;

use handoff_testbed::helpers::bytes_at;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};

use crate::device::{
    Lending, MORE, NOWAIT, REPLACE, SOURCE, TARGET, connection, further, in_memory, on_disk, write,
};

const MIB: usize = 1 << 20;

fn filled(file: File, bytes: usize) -> File {
    file.write_all_at(&bytes_at(0, bytes), 0).expect("writes");
    file.sync_all().expect("syncs");
    file
}

fn evict(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("evicts");
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.metadata().expect("stats").len() as usize];
    file.read_exact_at(&mut content, 0).expect("reads");
    content
}

/// Lends all of a file in pieces, and writes each to its place in another.
fn copy(lending: &mut Lending, source: &File, target: &File, piece: u32) {
    let id = lending.device.bind(source, SOURCE).expect("binds");
    let mut position = 0;
    loop {
        let lent = lending.run(lending.get(1, id, position, piece));
        assert!(lent >= 0, "get: {lent}");
        if lent == 0 {
            break;
        }
        let results = lending.chain(&[write(1, target, 0, lent as u32, position), lending.put(1)]);
        assert_eq!(results, [lent, 0], "at {position}");
        position += lent as u64;
    }
    lending.device.unbind(id).expect("unbinds");
}

#[test]
fn a_file_is_lent_into_many_slots_at_once() {
    const PIECE: usize = 10_000;
    let mut lending = Lending::new();
    let source = filled(on_disk(), 95_000);
    let id = lending.device.bind(&source, SOURCE).expect("binds");
    for cold in [true, false] {
        if cold {
            evict(&source);
        }
        let get = lending.get_with(0, id, 10_000, PIECE as u32, REPLACE | further(19));
        assert_eq!(lending.run(get), 85_000);
        let target = in_memory();
        for slot in 0..9 {
            let wanted = PIECE.min(85_000 - slot * PIECE) as u32;
            let to = (slot * PIECE) as u64;
            assert_eq!(lending.run(write(slot as u16, &target, 0, wanted, to)), wanted as i32);
        }
        assert!(content(&target) == bytes_at(10_000, 85_000), "content differs");
        // The rest of its slots are empty.
        assert_eq!(lending.run(write(9, &target, 0, 1, 0)), -libc::EFAULT);
        assert_eq!(lending.device.query().lends, 9);
    }
    let at_end = lending.get_with(0, id, 95_000, PIECE as u32, REPLACE | further(8));
    assert_eq!(lending.run(at_end), 0);
    assert_eq!(lending.until_all_are_back().lent, 18);
}

#[test]
fn a_file_is_copied_cold_and_warm() {
    let mut lending = Lending::new();
    let source = filled(on_disk(), MIB + 333);
    for (round, piece) in [100_000, 300_001, 4_096, 4 * MIB as u32].into_iter().enumerate() {
        let cold = round % 2 == 0;
        if cold {
            evict(&source);
        }
        let before = lending.device.query();
        let target = in_memory();
        copy(&mut lending, &source, &target, piece);
        assert!(content(&target) == bytes_at(0, MIB + 333), "{piece}: content differs");
        let after = lending.until_all_are_back();
        assert_eq!(after.from_splice > before.from_splice, cold, "{after:?}");
        assert!(cold || after.from_cache > before.from_cache, "{after:?}");
        assert_eq!(after.copied_bytes, 0);
    }
}

#[test]
fn a_write_past_the_page_cache_takes_lent_pages() {
    let mut lending = Lending::new();
    let source = filled(on_disk(), MIB);
    let path = format!("/var/tmp/direct-{}", std::process::id());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let target = options.open(&path).expect("opens");
    copy(&mut lending, &source, &target, 65_536);
    assert!(fs::read(&path).expect("reads") == bytes_at(0, MIB), "content differs");
    fs::remove_file(&path).expect("removes");
}

#[test]
fn whatever_has_splice_read_can_be_lent() {
    let mut lending = Lending::new();
    let mut sources = vec![
        ("memory", filled(in_memory(), 100_000), bytes_at(0, 100_000)),
        ("proc", File::open("/proc/cpuinfo").expect("opens"), Vec::new()),
        ("sysfs", File::open("/sys/kernel/notes").expect("opens"), Vec::new()),
    ];
    let path = format!("/var/tmp/source-{}", std::process::id());
    fs::write(&path, bytes_at(0, 65_536)).expect("writes");
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    sources.push(("direct", direct.expect("opens"), bytes_at(0, 65_536)));
    for (name, file, expected) in sources {
        let expected = if expected.is_empty() {
            let mut whole = Vec::new();
            (&file).read_to_end(&mut whole).expect("reads");
            whole
        } else {
            expected
        };
        let target = in_memory();
        copy(&mut lending, &file, &target, 16_384);
        assert!(content(&target) == expected, "{name}: content differs");
    }
    fs::remove_file(&path).expect("removes");

    let zero = File::open("/dev/zero").expect("opens");
    let id = lending.device.bind(&zero, SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(1, id, 0, 10_000)), 10_000);
    let target = filled(in_memory(), 10_000);
    assert_eq!(lending.write(1, &target, 10_000), 10_000);
    assert!(content(&target).iter().all(|&byte| byte == 0));
}

#[test]
fn a_file_of_overlayfs_is_lent_by_way_of_the_one_below() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let script = "mkdir lower upper work merged
        mount -t tmpfs upper upper
        mkdir upper/data upper/work
        mount -t overlay -o lowerdir=lower,upperdir=upper/data,workdir=upper/work overlay merged";
    let mut shell = Command::new("sh");
    let made = shell.args(["-euc", script]).current_dir(&directory).status().expect("starts");
    assert!(made.success(), "{made}");
    let path = directory.path().join("merged/file");
    fs::write(&path, bytes_at(0, 100_000)).expect("writes");
    let mut lending = Lending::new();
    let target = in_memory();
    copy(&mut lending, &File::open(&path).expect("opens"), &target, 30_000);
    assert!(content(&target) == bytes_at(0, 100_000), "content differs");
    let query = lending.until_all_are_back();
    assert_eq!((query.from_cache, query.from_splice), (0, 4), "{query:?}");
    drop(lending);
    let mut shell = Command::new("sh");
    let undo = shell.args(["-euc", "umount merged upper"]).current_dir(&directory).status();
    assert!(undo.expect("starts").success());
}

/// A file system with a file of 64 KiB, mounted while this lives.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(make: &str) -> Self {
        let mounted = Self(tempfile::tempdir_in("/var/tmp").expect("a directory"));
        // The device goes with the mount.
        let script = "modprobe loop; truncate -s 320M image; mkdir top
            device=$(losetup --find --show image)
            $MAKE $device >&2; mount $device top; losetup --detach $device";
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]).env("MAKE", make);
        let made = shell.current_dir(mounted.0.path()).output().expect("starts");
        assert!(made.status.success(), "{make}: {}", String::from_utf8_lossy(&made.stderr));
        fs::write(mounted.file(), bytes_at(0, 65_536)).expect("writes");
        mounted
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("top/file")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let undone = Command::new("umount").arg(self.0.path().join("top")).status();
        assert!(
            undone.is_ok_and(|status| status.success()) || thread::panicking(),
            "stays mounted"
        );
    }
}

#[test]
fn what_a_file_system_that_was_shut_down_has_in_memory_is_not_lent() {
    /// `EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN`.
    const SHUT_DOWN: u64 = 2 << 30 | 4 << 16 | (b'X' as u64) << 8 | 125;
    const AT_ONCE: u32 = 2;
    for make in ["mkfs.ext4 -q", "mkfs.xfs -q"] {
        let mounted = Mounted::new(make);
        let file = File::open(mounted.file()).expect("opens");
        let mut lending = Lending::new();
        let id = lending.device.bind(&file, SOURCE).expect("binds");
        assert_eq!(lending.run(lending.get(1, id, 0, 65_536)), 65_536);
        assert_eq!(lending.device.query().from_cache, 1, "{make}");
        let mut how = AT_ONCE;
        // SAFETY: the call reads a number.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), SHUT_DOWN as _, &raw mut how) };
        assert_eq!(done, 0, "{make}: {}", std::io::Error::last_os_error());
        assert_eq!(lending.run(lending.get(2, id, 0, 65_536)), -libc::EIO, "{make}");
        let at_once = lending.get_with(2, id, 0, 65_536, NOWAIT);
        assert_eq!(lending.run(at_once), -libc::EIO, "{make}");
        lending.device.unbind(id).expect("unbinds");
        assert_eq!(lending.run(lending.put(1)), 0);
    }
}

#[test]
fn a_file_system_that_was_not_tried_is_asked_for_its_pages() {
    let mounted = Mounted::new("mkfs.ext3 -q");
    let file = File::open(mounted.file()).expect("opens");
    let mut lending = Lending::new();
    let id = lending.device.bind(&file, SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(1, id, 0, 65_536)), 65_536);
    let query = lending.device.query();
    assert_eq!((query.from_cache, query.from_splice), (0, 1), "{query:?}");
    let target = in_memory();
    assert_eq!(lending.write(1, &target, 65_536), 65_536);
    assert!(content(&target) == bytes_at(0, 65_536), "content differs");
    assert_eq!(lending.run(lending.put(1)), 0);
    lending.device.unbind(id).expect("unbinds");
}

#[test]
fn a_block_device_is_lent_from_its_cache() {
    let mut lending = Lending::new();
    let disk = fs::read_dir("/sys/block").expect("reads").flatten().map(|entry| entry.file_name());
    let name = disk.filter_map(|name| name.into_string().ok()).find(|name| name.starts_with("vd"));
    let disk = File::open(format!("/dev/{}", name.expect("a disk"))).expect("opens");
    let id = lending.device.bind(&disk, SOURCE).expect("binds");
    let mut expected = vec![0; 200_000];
    disk.read_exact_at(&mut expected, 1_000).expect("reads");
    let target = in_memory();
    assert_eq!(lending.run(lending.get(1, id, 1_000, 200_000)), 200_000);
    assert_eq!(lending.write(1, &target, 200_000), 200_000);
    assert!(content(&target) == expected, "content differs");
    assert_eq!(lending.device.query().from_cache, 1);
}

#[test]
fn lent_pages_are_sent() {
    let mut lending = Lending::new();
    let source = filled(on_disk(), MIB);
    let id = lending.device.bind(&source, SOURCE).expect("binds");
    let (left, mut right) = connection();
    let target = lending.device.bind(&left, TARGET).expect("binds");
    let receiver = thread::spawn(move || {
        let mut received = Vec::new();
        right.read_to_end(&mut received).expect("receives");
        received
    });
    // One lend; half of it by SEND_ZC, half by SEND, each continuing with the rest.
    assert_eq!(lending.run(lending.get(1, id, 0, MIB as u32)), MIB as i32);
    let mut sent = 0;
    while sent < MIB / 2 {
        let from = sent as *const u8;
        let request = opcode::SendZc::new(Fd(left.as_raw_fd()), from, (MIB / 2 - sent) as u32)
            .buf_index(Some(1))
            .build();
        lending.submit(&[request]);
        let first = &lending.wait(1)[0];
        assert!(first.result() > 0, "{}", first.result());
        sent += first.result() as usize;
        if cqueue::more(first.flags()) {
            assert!(cqueue::notif(lending.wait(1)[0].flags()));
        }
    }
    while sent < MIB {
        let bytes = (MIB - sent).min(200_000) as u32;
        let result = lending.run(lending.send(1, target, sent as u64, bytes, MORE));
        assert!(result > 0, "{result}");
        sent += result as usize;
    }
    let query = lending.device.query();
    assert_eq!((query.lends, query.returned), (1, 0), "{query:?}");
    assert_eq!(query.sent_bytes, MIB as u64 / 2);
    assert_eq!(lending.run(lending.put(1)), 0);
    assert_eq!(lending.until_all_are_back().returned, 1);
    lending.device.unbind(target).expect("unbinds");
    drop(left);
    assert!(receiver.join().expect("ends") == bytes_at(0, MIB), "what arrived differs");
}

#[test]
fn a_lend_used_in_parts_comes_back_once_and_whole() {
    let mut lending = Lending::new();
    let source = filled(on_disk(), 200_000);
    let id = lending.device.bind(&source, SOURCE).expect("binds");
    let target = in_memory();
    assert_eq!(lending.run(lending.get(1, id, 77, 150_000)), 150_000);
    for (from, bytes) in [(0, 1_000), (1_000, 100_001), (101_001, 48_999)] {
        let done = lending.run(write(1, &target, from, bytes, from as u64));
        assert_eq!(done, bytes as i32);
        assert_eq!(lending.device.query().returned, 0);
    }
    assert!(content(&target) == bytes_at(77, 150_000), "content differs");
    // Beyond its end.
    assert_eq!(lending.run(write(1, &target, 149_999, 2, 0)), -libc::EFAULT);
    assert_eq!(lending.run(lending.put(1)), 0);
    assert_eq!(lending.until_all_are_back().returned, 1);
}

#[test]
fn the_end_of_a_file_is_told() {
    let mut lending = Lending::new();
    let source = filled(on_disk(), 10_000);
    let id = lending.device.bind(&source, SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(1, id, 9_990, 4_096)), 10);
    assert_eq!(lending.run(lending.get(2, id, 10_000, 4_096)), 0);
    assert_eq!(lending.run(lending.get(2, id, 1 << 40, 4_096)), 0);
    assert_eq!(lending.run(lending.put(2)), -libc::EINVAL);
    evict(&source);
    assert_eq!(lending.run(lending.get(2, id, 9_000, 4_096)), 1_000);
    assert_eq!(lending.run(lending.get(3, id, 20_000, 4_096)), 0);
}

#[test]
fn who_may_not_wait_is_told_what_is_not_in_memory() {
    let mut lending = Lending::new();
    let source = filled(on_disk(), MIB);
    evict(&source);
    let id = lending.device.bind(&source, SOURCE).expect("binds");
    let request = lending.get_with(1, id, 500_000, 4_096, NOWAIT);
    assert_eq!(lending.run(request.clone()), -libc::EAGAIN);
    let mut one = [0];
    source.read_exact_at(&mut one, 500_000).expect("reads");
    assert!(lending.run(request) > 0);
}

#[test]
fn files_change_while_they_are_lent() {
    let mut lending = Lending::new();
    let path = format!("/var/tmp/changing-{}", std::process::id());
    fs::write(&path, bytes_at(0, 4 * 65_536)).expect("writes");
    let source = OpenOptions::new().read(true).write(true).open(&path).expect("opens");
    let id = lending.device.bind(&source, SOURCE).expect("binds");
    for slot in 0..4 {
        let position = u64::from(slot) * 65_536;
        assert_eq!(lending.run(lending.get(slot, id, position, 65_536)), 65_536);
    }
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&source, hole, 65_536, 65_536).expect("punches");
    source.set_len(2 * 65_536 + 100).expect("truncates");
    fs::remove_file(&path).expect("unlinks");
    lending.device.unbind(id).expect("unbinds");
    drop(source);
    fs::write("/proc/sys/vm/drop_caches", "3").expect("drops caches");

    let target = in_memory();
    for slot in 0..4 {
        let place = u64::from(slot) * 65_536;
        assert_eq!(lending.run(write(slot, &target, 0, 65_536, place)), 65_536);
        assert_eq!(lending.run(lending.put(slot)), 0);
    }
    // The file's bytes, or zeros where it has lost them; never anything else.
    let expected = bytes_at(0, 4 * 65_536);
    let seen = content(&target);
    assert!(seen[..65_536] == expected[..65_536], "what was not touched differs");
    let strange = seen.iter().zip(&expected).position(|(&seen, &was)| seen != was && seen != 0);
    assert_eq!(strange, None);
    lending.until_all_are_back();
}
