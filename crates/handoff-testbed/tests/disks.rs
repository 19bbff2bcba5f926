//! The disks of the lab: made, used and gone.

mod guest {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::{Path, PathBuf};
    use std::thread;
    use std::time::{Duration, Instant};

    use handoff_testbed::{Disk, Fault, Flaky, LoopDisk, NullDisk, RamDisk, Schedule};

    const MIB: u64 = 1 << 20;
    const BLOCK: usize = 4_096;

    /// Memory on a block's boundary, for requests past the page cache.
    #[repr(C, align(4096))]
    struct Block([u8; BLOCK]);

    fn open(path: &Path) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn write(disk: &impl Disk, byte: u8, number: u64) -> io::Result<()> {
        open(disk.path()).write_all_at(&Block([byte; BLOCK]).0, number * BLOCK as u64)
    }

    /// The block's bytes, if they are all the same.
    fn read(disk: &impl Disk, number: u64) -> io::Result<Option<u8>> {
        let mut block = Block([0xaa; BLOCK]);
        open(disk.path()).read_exact_at(&mut block.0, number * BLOCK as u64)?;
        Ok(Some(block.0[0]).filter(|&first| block.0.iter().all(|&byte| byte == first)))
    }

    fn keeps_what_is_written(disk: &impl Disk, bytes: u64) {
        assert_eq!(disk.bytes().unwrap(), bytes);
        let last = bytes / BLOCK as u64 - 1;
        for (byte, number) in [(1, 0), (2, 7), (3, last)] {
            write(disk, byte, number).unwrap();
        }
        for (byte, number) in [(1, 0), (2, 7), (3, last), (0, 1)] {
            assert_eq!(read(disk, number).unwrap(), Some(byte));
        }
        let past = write(disk, 1, last + 1).unwrap_err();
        assert!(
            matches!(past.raw_os_error(), Some(libc::ENOSPC) | Some(libc::EIO))
                || past.kind() == io::ErrorKind::WriteZero,
            "{past}"
        );
    }

    /// The kernel may take a moment to take a device down.
    #[track_caller]
    fn assert_gone(what: &str, is_there: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_there() {
            assert!(Instant::now() < deadline, "{what} outlives its owner");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn dropped_is_gone(disk: impl Disk) {
        let path: PathBuf = disk.path().to_owned();
        drop(disk);
        assert_gone(&path.display().to_string(), || path.exists());
    }

    #[test]
    fn a_ram_disk_keeps_what_is_written() {
        for mib in [8, 24] {
            let disk = RamDisk::new(mib * 1024).unwrap();
            keeps_what_is_written(&disk, mib * MIB);
            let second = RamDisk::new(1024).unwrap_err();
            assert!(second.to_string().contains("one at a time"), "{second}");
            dropped_is_gone(disk);
        }
    }

    #[test]
    fn a_null_disk_has_no_memory() {
        let disks = [512, 4096].map(|block| NullDisk::new(64, block, 2).unwrap());
        for disk in &disks {
            assert_eq!(disk.bytes().unwrap(), 64 * MIB);
            write(disk, 7, 3).unwrap();
            assert_ne!(read(disk, 3).unwrap(), Some(7));
        }
        disks.into_iter().for_each(dropped_is_gone);
    }

    #[test]
    fn a_loop_disk_keeps_what_is_written() {
        for (directory, block, direct) in
            [("/dev/shm", 512, false), ("/var/tmp", 4096, true), ("/var/tmp", 4096, false)]
        {
            let disk = LoopDisk::new(Path::new(directory), 16 * MIB, block, direct).unwrap();
            keeps_what_is_written(&disk, 16 * MIB);
            let name = disk.path().file_name().unwrap().to_str().unwrap().to_owned();
            let backing = PathBuf::from(format!("/sys/block/{name}/loop/backing_file"));
            assert!(backing.exists());
            let mode = std::fs::read_to_string(format!("/sys/block/{name}/loop/dio")).unwrap();
            assert_eq!(mode.trim() == "1", direct, "{directory}");
            drop(disk);
            // The number stays, without a file behind it.
            assert_gone(&name, || backing.exists());
        }
    }

    #[test]
    fn a_loop_disk_over_another_is_that_one() {
        let lower = RamDisk::new(8192).unwrap();
        write(&lower, 3, 1).unwrap();
        let disk = LoopDisk::over(lower.path(), 512, true).unwrap();
        assert_eq!(disk.bytes().unwrap(), lower.bytes().unwrap());
        assert_eq!(read(&disk, 1).unwrap(), Some(3));
        write(&disk, 5, 2).unwrap();
        let name = disk.path().file_name().unwrap().to_str().unwrap().to_owned();
        let backing = PathBuf::from(format!("/sys/block/{name}/loop/backing_file"));
        drop(disk);
        // Otherwise the disk below could not go either.
        assert_gone(&name, || backing.exists());
        assert_eq!(read(&lower, 2).unwrap(), Some(5));
    }

    #[test]
    fn a_flaky_disk_fails_as_it_is_told() {
        let disk = Flaky::over(RamDisk::new(8192).unwrap(), Schedule::WORKS).unwrap();
        keeps_what_is_written(&disk, 8 * MIB);
        write(&disk, 1, 2).unwrap();

        disk.set(Schedule::fails(Fault::Everything)).unwrap();
        assert_eq!(write(&disk, 9, 2).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(read(&disk, 2).unwrap_err().raw_os_error(), Some(libc::EIO));

        disk.set(Schedule::fails(Fault::ErrorWrites)).unwrap();
        assert_eq!(write(&disk, 9, 2).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(read(&disk, 2).unwrap(), Some(1));

        disk.set(Schedule::fails(Fault::ErrorReads)).unwrap();
        assert_eq!(read(&disk, 2).unwrap_err().raw_os_error(), Some(libc::EIO));
        write(&disk, 4, 2).unwrap();

        disk.set(Schedule::fails(Fault::DropWrites)).unwrap();
        write(&disk, 9, 2).unwrap();
        disk.set(Schedule::WORKS).unwrap();
        assert_eq!(read(&disk, 2).unwrap(), Some(4), "the last write was dropped");
        assert_eq!(read(disk.lower(), 2).unwrap(), Some(4));
        dropped_is_gone(disk);
        assert_gone("the disk below", || Path::new("/dev/ram0").exists());
    }

    #[test]
    fn a_flaky_disk_fails_and_recovers_by_the_clock() {
        let lower = LoopDisk::new(Path::new("/var/tmp"), 8 * MIB, 4096, false).unwrap();
        let schedule = Schedule { up: 2, down: 2, fault: Fault::Everything };
        let disk = Flaky::over(lower, schedule).unwrap();
        let mut seen = Vec::new();
        let begin = Instant::now();
        // A slow look may miss when it begins to work.
        while !seen.ends_with(&[true, false, true]) {
            let works = read(&disk, 0).is_ok();
            if seen.last() != Some(&works) {
                seen.push(works);
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{seen:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}
