//! Calls that move no bytes: syncs, room, lengths, names.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use handoff::{Advice, Allocation, Buffer, Driver, Error, OpenOptions, Renaming, Wait, WriteBack};

use super::opening::{at_once, directory, options, over};
use super::{LONG, example, file_of, pipe};
use crate::traffic::{pattern, with_each_driver};

#[test]
fn a_file_is_synced_and_advised_about() {
    with_each_driver(LONG, |driver| {
        let file = driver.file(file_of(&pattern(1, 100_000))).unwrap();
        over(&driver, file.sync_data()).unwrap();
        over(&driver, file.sync_all()).unwrap();
        for how in [WriteBack::Begin, WriteBack::Finish] {
            // One request has no room for all of it.
            for (offset, len) in [(0, 0), (4096, 10_000), (0, 9 << 30)] {
                over(&driver, file.write_back(offset, len, how)).unwrap();
            }
        }
        for advice in [
            Advice::Normal,
            Advice::Sequential,
            Advice::Random,
            Advice::NoReuse,
            Advice::WillNeed,
            Advice::DontNeed,
        ] {
            for (offset, len) in [(0, 0), (4096, 10_000), (0, 9 << 30)] {
                over(&driver, file.advise(offset, len, advice)).unwrap();
            }
        }
        for refused in [
            file.write_back(1 << 62, 1 << 62, WriteBack::Begin),
            file.advise(u64::MAX, 2, Advice::Normal),
            file.allocate(1 << 63, 1, Allocation::Grow),
            file.allocate(0, 0, Allocation::Grow),
            file.set_len(1 << 63),
        ] {
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
        // An error names the operation.
        let (reader, _writer) = pipe();
        let pipe = driver.file(reader).unwrap();
        let error = over(&driver, pipe.sync_all()).unwrap_err();
        assert!(error.to_string().starts_with("syncing a file: "), "{error}");
        let error = over(&driver, pipe.advise(0, 0, Advice::Normal)).unwrap_err();
        assert!(error.to_string().starts_with("advising about a file: "), "{error}");
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn a_range_gets_room_and_loses_its_bytes() {
    with_each_driver(LONG, |driver| {
        let (own, directory) = directory(&driver);
        let path = own.path().join("file");
        fs::write(&path, pattern(1, 64 << 10)).unwrap();
        let both = options(|it| it.read(true).write(true));
        let file = over(&driver, directory.open("file", &both)).unwrap();
        // Some file systems know fewer ways, and an error says that.
        let allocate = |offset, len, how| match over(&driver, file.allocate(offset, len, how)) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
                assert!(error.to_string().contains("does not know this way"), "{error}");
                false
            }
        };
        let len = || over(&driver, file.metadata()).unwrap().len();
        if allocate(64 << 10, 1 << 20, Allocation::KeepSize) {
            assert_eq!(len(), 64 << 10);
            assert!(over(&driver, file.metadata()).unwrap().allocated() >= 1 << 20);
        }
        if allocate(0, 128 << 10, Allocation::Grow) {
            assert_eq!(len(), 128 << 10);
        }
        let mut expected = pattern(1, 64 << 10);
        expected.resize(len() as usize, 0);
        if allocate(4096, 8192, Allocation::PunchHole) {
            expected[4096..4096 + 8192].fill(0);
        }
        if allocate(32 << 10, 4096, Allocation::ZeroKeepSize) {
            expected[32 << 10..][..4096].fill(0);
        }
        assert!(fs::read(&path).unwrap() == expected);
        if allocate(0, 256 << 10, Allocation::Zero) {
            assert!(fs::read(&path).unwrap() == vec![0; 256 << 10]);
        }
    });
}

#[test]
fn a_file_is_cut_and_lengthened() {
    with_each_driver(LONG, |driver| {
        let (own, directory) = directory(&driver);
        let path = own.path().join("file");
        fs::write(&path, pattern(1, 10_000)).unwrap();
        let file = over(&driver, directory.open("file", &options(|it| it.write(true)))).unwrap();
        over(&driver, file.set_len(5_000)).unwrap();
        assert!(fs::read(&path).unwrap() == pattern(1, 5_000));
        over(&driver, file.set_len(6_000)).unwrap();
        assert!(fs::read(&path).unwrap()[5_000..] == [0; 1_000]);
        let read = over(&driver, directory.open("file", &options(|it| it.read(true)))).unwrap();
        let error = over(&driver, read.set_len(1)).unwrap_err();
        assert!(error.to_string().starts_with("setting the length"), "{error}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 6_000);
    });
}

#[test]
fn metadata_tells_what_the_kernel_knows() {
    with_each_driver(LONG, |driver| {
        let (own, directory) = directory(&driver);
        let path = own.path().join("file");
        fs::write(&path, pattern(1, 10_000)).unwrap();
        std::os::unix::fs::symlink("file", own.path().join("link")).unwrap();
        let same = |told: &handoff::Metadata, expected: &fs::Metadata| {
            assert_eq!(told.len(), expected.len());
            assert_eq!(told.allocated(), expected.blocks() * 512);
            assert_eq!(told.mode(), expected.mode());
            assert_eq!(u64::from(told.links()), expected.nlink());
            assert_eq!(told.owner(), (expected.uid(), expected.gid()));
            assert_eq!(told.identity().1, expected.ino());
            assert_eq!(told.modified(), expected.modified().unwrap());
            assert_eq!(told.created(), expected.created().ok());
            assert_eq!(
                (told.is_file(), told.is_dir(), told.is_symlink()),
                (expected.is_file(), expected.is_dir(), expected.is_symlink())
            );
        };
        let expected = fs::metadata(&path).unwrap();
        same(&over(&driver, directory.metadata("file")).unwrap(), &expected);
        same(&over(&driver, directory.metadata("link")).unwrap(), &expected);
        let link = fs::symlink_metadata(own.path().join("link")).unwrap();
        same(&over(&driver, directory.symlink_metadata("link")).unwrap(), &link);
        same(&over(&driver, directory.metadata(".")).unwrap(), &fs::metadata(own.path()).unwrap());
        let file = over(&driver, directory.open("file", &options(|it| it.read(true)))).unwrap();
        let told = over(&driver, file.metadata()).unwrap();
        same(&told, &expected);
        if let Some(alignment) = told.alignment() {
            assert!(alignment.blocks.is_power_of_two() && alignment.memory.is_power_of_two());
        }
        // Before 1970, too.
        let long_ago = SystemTime::UNIX_EPOCH - Duration::from_millis(86_400_500);
        fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let told = over(&driver, file.metadata()).unwrap().modified();
        assert_eq!(told, fs::metadata(&path).unwrap().modified().unwrap());
        let error = over(&driver, directory.metadata("none")).unwrap_err();
        assert!(error.to_string().starts_with("asking about none: "), "{error}");
    });
}

#[test]
fn names_change_in_one_step_and_never_by_chance() {
    with_each_driver(LONG, |driver| {
        let (own, first) = directory(&driver);
        let (other, second) = directory(&driver);
        let read = |path: &str| fs::read_to_string(own.path().join(path)).ok();
        let write = |path: &str| fs::write(own.path().join(path), path).unwrap();
        write("a");
        write("b");
        let error = over(&driver, first.rename("a", &first, "b", Renaming::NoReplace)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST), "{error}");
        assert!(error.to_string().starts_with("renaming a to b: "), "{error}");
        over(&driver, first.rename("a", &first, "b", Renaming::Exchange)).unwrap();
        assert_eq!((read("a").as_deref(), read("b").as_deref()), (Some("b"), Some("a")));
        over(&driver, first.rename("a", &first, "b", Renaming::Replace)).unwrap();
        assert_eq!((read("a"), read("b").as_deref()), (None, Some("b")));
        over(&driver, first.rename("b", &second, "c", Renaming::NoReplace)).unwrap();
        assert_eq!(fs::read_to_string(other.path().join("c")).unwrap(), "b");
        let error = over(&driver, first.rename("b", &second, "c", Renaming::Exchange)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));

        over(&driver, first.create_dir("d", 0o700)).unwrap();
        assert_eq!(fs::metadata(own.path().join("d")).unwrap().mode() & 0o777, 0o700);
        let error = over(&driver, first.create_dir("d", 0o700)).unwrap_err();
        assert!(error.to_string().starts_with("making the directory d: "), "{error}");
        assert!(matches!(first.create_dir("e", 0o10_000), Err(Error::Invalid(_))));
        write("d/file");
        let error = over(&driver, first.remove_dir("d")).unwrap_err();
        assert!(error.to_string().starts_with("removing the directory d: "), "{error}");
        let error = over(&driver, first.remove_file("d")).unwrap_err();
        assert!(error.to_string().starts_with("removing d: "), "{error}");
        over(&driver, first.remove_file("d/file")).unwrap();
        over(&driver, first.remove_dir("d")).unwrap();
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 0);

        over(&driver, first.sync_all()).unwrap();
        let working = driver.working_directory().unwrap();
        assert!(working.sync_all().unwrap_err().to_string().contains("open_dir"));
        let read = OpenOptions::new().read(true).clone();
        let opened = over(&driver, working.open_dir(".", &read)).unwrap();
        over(&driver, opened.sync_all()).unwrap();
        assert_eq!(driver.in_flight(), 0);
    });
}

/// Whenever nobody waits any more: what changes something goes on, and nothing is left under way.
#[test]
fn dropped_calls_go_on_where_they_change_something() {
    with_each_driver(LONG, |driver| {
        for turns in 0..3 {
            let (own, directory) = directory(&driver);
            fs::write(own.path().join("a"), pattern(1, 10_000)).unwrap();
            fs::write(own.path().join("z"), "").unwrap();
            let both = options(|it| it.read(true).write(true));
            let file = over(&driver, directory.open("a", &both)).unwrap();
            let changes = [
                file.set_len(100).unwrap(),
                file.sync_all().unwrap(),
                directory.rename("a", &directory, "b", Renaming::NoReplace).unwrap(),
                directory.create_dir("d", 0o700).unwrap(),
                directory.remove_file("z").unwrap(),
                file.write_back(0, 0, WriteBack::Finish).unwrap(),
                file.advise(0, 0, Advice::DontNeed).unwrap(),
            ];
            let questions = [file.metadata().unwrap(), directory.symlink_metadata("z").unwrap()];
            for _ in 0..turns {
                driver.turn(Wait::No).unwrap();
            }
            drop((changes, questions, file, directory));
            while driver.in_flight() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
            assert_eq!(fs::read(own.path().join("b")).unwrap(), pattern(1, 100));
            assert!(own.path().join("d").is_dir());
            assert_eq!(fs::read_dir(own.path()).unwrap().count(), 2);
        }
    });
}

#[test]
fn cancelled_calls_end_one_way_or_the_other() {
    with_each_driver(LONG, |driver| {
        let file = driver.file(file_of(&pattern(1, 1 << 20))).unwrap();
        for turns in 0..2 {
            let calls = [
                file.sync_all().unwrap(),
                file.write_back(0, 1 << 40, WriteBack::Finish).unwrap(),
                file.set_len(1 << 20).unwrap(),
                file.advise(0, 1 << 40, Advice::Normal).unwrap(),
            ];
            for _ in 0..turns {
                driver.turn(Wait::No).unwrap();
            }
            for call in calls {
                call.cancel();
                match driver.block_on(call).unwrap() {
                    Ok(()) | Err(Error::Canceled { done: 0 }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(driver.in_flight(), 0);
        }
        // The file is as good as before.
        let read = file.read_at(Buffer::from(vec![0; 10]), 0).unwrap();
        assert_eq!(driver.block_on(read).unwrap().unwrap().result.unwrap(), 10);
    });
}

#[test]
fn calls_under_way_end_with_their_driver() {
    let begun = |driver: &Driver| {
        let file = driver.file(file_of(&pattern(1, 10_000))).unwrap();
        let calls = (file.sync_all().unwrap(), file.metadata().unwrap());
        (file, calls)
    };
    with_each_driver(LONG, move |driver| {
        let (file, (sync, metadata)) = begun(&driver);
        drop(driver);
        for ended in [at_once(sync).err(), at_once(metadata).err()] {
            let ended_well =
                matches!(ended, None | Some(Error::Canceled { .. } | Error::DriverGone));
            assert!(ended_well, "{ended:?}");
        }
        assert!(matches!(file.sync_all(), Err(Error::DriverGone)));
    });
}

#[test]
fn the_example_keeps_a_log() {
    with_each_driver(LONG, |driver| {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().to_str().unwrap();
        for run in 1..3 {
            let len = driver.block_on(example::keep(&driver, path)).unwrap().unwrap();
            assert_eq!(len, run * (4 + 6 + 4 + 4));
        }
        assert_eq!(fs::read(own.path().join("checkpoint")).unwrap(), b"2 records\n");
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 2);
    });
}
