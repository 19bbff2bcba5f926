//! Copies that share their blocks with the source, on a file system that can.

mod guest {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    use handoff_testbed::{Disk, RamDisk};
    use rustix::fs::{fsync, statvfs};
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use crate::session::{path, pattern, run};

    const LEN: usize = 30_000_001;

    #[test]
    fn a_copy_takes_no_room_until_it_is_changed() {
        // XFS wants 300 MiB.
        let disk = RamDisk::new(320 << 10).expect("a disk in memory");
        let made = Command::new("mkfs.xfs").arg("-q").arg(disk.path()).output().expect("starts");
        assert!(made.status.success(), "{made:?}");
        let directory = tempfile::tempdir().expect("a directory");
        mount(disk.path(), directory.path(), c"xfs", MountFlags::empty(), None).expect("mounts");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let free = || {
            // Room that is only promised counts once it is written.
            fsync(fs::File::open(&source).expect("opens")).expect("writes");
            let status = statvfs(directory.path()).expect("is mounted");
            status.f_bfree * status.f_frsize
        };
        let before = free();
        let report = run(&["--json", path(&source), path(&copy)]).report();
        let hop = &report["hops"][0];
        assert_eq!(
            (&hop["engine"], &hop["zero_copy"]),
            (&"reflink".into(), &LEN.into()),
            "{report}"
        );
        assert!(before - free() < 1 << 20, "{before} bytes before, {} now", free());
        assert!(fs::read(&copy).expect("is there") == pattern(LEN), "the copy differs");

        let changed = OpenOptions::new().write(true).open(&copy).expect("opens");
        changed.write_all_at(b"changed", 12_345).expect("writes");
        drop(changed);
        assert!(fs::read(&source).expect("is there") == pattern(LEN), "the source has changed");
        unmount(directory.path(), UnmountFlags::empty()).expect("nobody uses it");
    }
}
