//! Discards and zeroes, over disks and file systems that have not both.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use handoff_block::state::Directory;
use handoff_block::{Engine, Kind, Spec};
use handoff_testbed::helpers::eventually;
use handoff_testbed::{Disk as _, Flaky, NullDisk, Schedule};

use super::device::{Device, Files, MIB, driver_or_skip, read_at, run, spec, write_at};

/// What a disk announces.
fn limit(disk: &Path, name: &str) -> u64 {
    let node = fs::canonicalize(disk).expect("a disk");
    let name = format!("/sys/class/block/{}/queue/{name}", node.file_name().unwrap().display());
    fs::read_to_string(name).expect("a limit").trim().parse().expect("a number")
}

/// The kernel lets go of a server's ring, and of the disk in it, a little later.
fn let_go(disk: &Path) {
    let alone = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(disk).ok();
    eventually("nobody has the disk", alone);
}

/// Discards and zeroes half of a device each, of which no request may fail.
fn given_back(spec: &Spec, (discards, zeroes): (bool, bool)) {
    const HALF: u64 = 4 * MIB;
    let (device, said) = (Device::of(spec), spec.engine.expect("one").name());
    let path = device.path();
    assert_eq!(limit(&path, "discard_max_bytes") != 0, discards, "{said}");
    assert_eq!(limit(&path, "write_zeroes_max_bytes") != 0, zeroes, "{said}");
    let disk = device.open();
    write_at(&disk, 0, &vec![7; 2 * HALF as usize]).expect("written");
    disk.sync_all().expect("flushed");
    let node = path.to_str().expect("UTF-8");
    let (half, offset) = (format!("-l{HALF}"), format!("-o{HALF}"));
    if discards {
        run("blkdiscard", &["-f", &half, node]);
        let read = read_at(&disk, 0, HALF as usize).expect("read");
        assert!(read.iter().all(|byte| *byte == 0), "{said}: it was given back");
    }
    run("blkdiscard", &["-f", "-z", &half, &offset, node]);
    let read = read_at(&disk, HALF, HALF as usize).expect("read");
    assert!(read.iter().all(|byte| *byte == 0), "{said}: zeroes");
    // Neither reaches beyond.
    write_at(&disk, 0, &[8; 3 * 4096]).expect("written");
    if discards {
        run("blkdiscard", &["-f", "-o4096", "-l4096", node]);
        let read = read_at(&disk, 0, 3 * 4096).expect("read");
        assert!(read == [[8; 4096], [0; 4096], [8; 4096]].concat(), "{said}");
    }
    drop(disk);
    let counters = Directory::of(device.id).counters(spec.queues, spec.depth).expect("counters");
    assert_eq!(counters.queues[0].errors, 0, "{said}");
    device.end();
}

/// As of dm-thin: to write zeroes would fill what a discard gives back.
#[test]
fn a_disk_that_only_discards_is_discarded() {
    driver_or_skip!();
    let disk = NullDisk::with_memory(8, 512).expect("a disk");
    let name = disk.path().file_name().expect("a name").display().to_string();
    let lower = NullDisk::with_memory(8, 512).expect("a disk");
    let mapped = Flaky::over(lower, Schedule::WORKS).expect("a disk of the device mapper");
    for engine in Engine::ALL {
        let of = |paths| Files { directory: tempfile::tempdir().expect("one"), paths };
        let whole =
            Spec { direct: true, ..spec(Kind::Loop, &of(vec![disk.path().into()]), engine) };
        given_back(&whole, (true, false));
        let_go(disk.path());
        // In one piece for the device, in many for the disk, which a thread then waits for.
        let most = format!("/sys/class/block/{name}/queue/discard_max_bytes");
        let before = fs::read_to_string(&most).expect("a limit");
        fs::write(&most, MIB.to_string()).expect("set");
        given_back(&whole, (true, false));
        fs::write(&most, before.trim()).expect("set");
        let_go(disk.path());
        // By the device mapper, most of whose disks want to wait.
        let upper = of(vec![mapped.path().into()]);
        given_back(&spec(Kind::Loop, &upper, engine), (true, false));
        let_go(mapped.path());
        // Beside a file, where it makes a hole.
        let mut files = Files::new(&[8 * MIB]);
        files.paths.push(disk.path().into());
        given_back(&spec(Kind::Mirror, &files, engine), (true, false));
        let_go(disk.path());
    }
}

#[test]
fn a_file_system_without_zeroes_is_not_asked_for_them() {
    driver_or_skip!();
    let point = tempfile::tempdir().expect("a directory");
    let at = point.path().to_str().expect("UTF-8");
    run("mount", &["-t", "tmpfs", "-o", "size=32m", "none", at]);
    let backing = point.path().join("backing");
    for engine in Engine::ALL {
        File::create(&backing).and_then(|file| file.set_len(8 * MIB)).expect("a file");
        let directory = tempfile::tempdir().expect("one");
        let files = Files { directory, paths: vec![backing.clone()] };
        given_back(&spec(Kind::Loop, &files, engine), (true, false));
        // The guest's disk has a file system that writes zeroes, which the trial leaves as it was.
        let files = Files::new(&[8 * MIB]);
        given_back(&spec(Kind::Loop, &files, engine), (true, true));
        assert_eq!(fs::read_dir(files.directory.path()).expect("it is there").count(), 1);
    }
    run("umount", &[at]);
}
