//! Reads and writes with flags of their own.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt as _;

use handoff::{Advice, Buffer, Driver, Error, Payload, PayloadMut, Region, RwFlags, Transferred};
use rustix::io::{ReadWriteFlags, preadv2};

use super::LONG;
use super::opening::{directory, options, over};
use crate::traffic::{drivers, filled, pattern, with_each_driver};

fn write<B: Payload>(
    driver: &Driver,
    file: &handoff::File,
    buffer: B,
    offset: u64,
    flags: RwFlags,
) -> Transferred<B> {
    let writing = file.write_at_with(buffer, offset, flags).map_err(|refused| refused.error);
    driver.block_on(writing.unwrap()).unwrap().unwrap()
}

fn read<B: PayloadMut>(
    driver: &Driver,
    file: &handoff::File,
    buffer: B,
    flags: RwFlags,
) -> Transferred<B> {
    let reading = file.read_at_with(buffer, 0, flags).map_err(|refused| refused.error);
    driver.block_on(reading.unwrap()).unwrap().unwrap()
}

#[test]
fn flags_go_with_each_kind_of_buffer() {
    for driver in drivers() {
        for registered in [false, true] {
            if registered && driver.ring_unavailable().is_some() {
                continue;
            }
            let mut region = Region::anonymous(1 << 20).unwrap();
            if registered {
                driver.register(&region).unwrap();
            }
            for flags in [RwFlags::NONE, RwFlags::DSYNC, RwFlags::SYNC | RwFlags::DSYNC] {
                let std_file = tempfile::tempfile().unwrap();
                let file = driver.file(std_file.try_clone().unwrap()).unwrap();
                let one = write(&driver, &file, filled(&mut region, 1, 5_000), 0, flags);
                assert_eq!(one.result.unwrap(), 5_000);
                let pieces: Vec<_> = (2..5).map(|seed| filled(&mut region, seed, 1_000)).collect();
                let many = write(&driver, &file, pieces, 5_000, flags);
                assert_eq!(many.result.unwrap(), 3_000);
                let mut got = vec![0; 8_000];
                std_file.read_exact_at(&mut got, 0).unwrap();
                let expected = [(1, 5_000), (2, 1_000), (3, 1_000), (4, 1_000)];
                let expected: Vec<u8> =
                    expected.into_iter().flat_map(|(seed, len)| pattern(seed, len)).collect();
                assert!(got == expected, "registered {registered}, {flags:?}");
                let pieces = many.buffer;
                let again = read(&driver, &file, pieces, RwFlags::NONE);
                assert_eq!(again.result.unwrap(), 3_000);
                assert!(again.buffer[2][..] == expected[2_000..3_000]);
            }
        }
    }
}

#[test]
fn an_appending_write_goes_to_the_end_whatever_its_offset() {
    with_each_driver(LONG, |driver| {
        let (own, directory) = directory(&driver);
        std::fs::write(own.path().join("log"), b"begins").unwrap();
        let file = over(&driver, directory.open("log", &options(|it| it.write(true)))).unwrap();
        let flags = RwFlags::APPEND | RwFlags::DSYNC;
        let pieces = vec![Buffer::from(b", goes".to_vec()), Buffer::from(b" on".to_vec())];
        assert_eq!(write(&driver, &file, pieces, 2, flags).result.unwrap(), 9);
        let end = Buffer::from(b", ends".to_vec());
        assert_eq!(write(&driver, &file, end, 0, flags).result.unwrap(), 6);
        assert_eq!(std::fs::read(own.path().join("log")).unwrap(), b"begins, goes on, ends");
    });
}

/// A read that would wait tells so; asked again and again it would never end.
#[test]
fn a_read_that_may_not_wait_ends_with_what_there_is() {
    with_each_driver(LONG, |driver| {
        let cold = || {
            // On a disk, where bytes can be out of the page cache.
            let std_file = tempfile::tempfile_in("/var/tmp").unwrap();
            std_file.write_all_at(&pattern(1, 64 << 10), 0).unwrap();
            let file = driver.file(std_file).unwrap();
            over(&driver, file.sync_data()).unwrap();
            over(&driver, file.advise(0, 0, Advice::Random)).unwrap();
            over(&driver, file.advise(0, 0, Advice::DontNeed)).unwrap();
            file
        };
        // What the kernel itself says; a file system in memory has all bytes.
        let mut room = [0];
        let by_call = preadv2(cold(), &mut [IoSliceMut::new(&mut room)], 0, ReadWriteFlags::NOWAIT);
        let file = cold();
        let all = || vec![Buffer::from(vec![0; 4096]), Buffer::from(vec![0; 60 << 10])];
        // The kernel forgets pages as far as it can, so not each file is cold.
        let told = |file: &handoff::File| match read(&driver, file, all(), RwFlags::NOWAIT).result {
            Ok(len) => {
                assert!((1..=64 << 10).contains(&len), "{len}");
                false
            }
            Err(error) => {
                assert_told(&error);
                true
            }
        };
        let is_told = told(&file) || (0..50).any(|_| told(&cold()));
        assert!(is_told || by_call.is_ok(), "{by_call:?}");
        // The first page is there now.
        let one = read(&driver, &file, Buffer::from(vec![0; 4096]), RwFlags::NONE);
        assert!(one.buffer[..] == pattern(1, 4096));
        let some = read(&driver, &file, all(), RwFlags::NOWAIT);
        match some.result {
            Ok(len) => {
                assert!((1..=64 << 10).contains(&len), "{len}");
                let got: Vec<u8> = some.buffer.iter().flat_map(|piece| piece.to_vec()).collect();
                assert!(got[..len] == pattern(1, 64 << 10)[..len]);
            }
            Err(error) => assert_told(&error),
        }
    });
}

/// Why a read could not go without a wait.
fn assert_told(error: &Error) {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => assert!(error.to_string().contains("without a wait"), "{error}"),
        Some(libc::EOPNOTSUPP) => assert!(error.to_string().contains("with flags"), "{error}"),
        _ => panic!("{error}"),
    }
}

#[test]
fn a_polled_read_is_over_at_once() {
    for driver in drivers() {
        let file = driver.file(super::file_of(&pattern(1, 4096))).unwrap();
        let buffer = Buffer::from(vec![0; 4096]);
        let reading = file.read_at_with(buffer, 0, RwFlags::HIPRI).unwrap();
        let over = reading.try_take().expect("the thread has polled for it");
        match over.result {
            Ok(len) => assert!(over.buffer[..] == pattern(1, 4096), "{len}"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}"),
        }
        assert_eq!(driver.in_flight(), 0);
    }
}

#[test]
fn flags_that_have_no_meaning_are_refused() {
    for driver in drivers() {
        let std_file = tempfile::tempfile().unwrap();
        let file = driver.file(std_file.try_clone().unwrap()).unwrap();
        for flags in [RwFlags::DSYNC, RwFlags::SYNC, RwFlags::APPEND, RwFlags::ATOMIC] {
            let flags = flags | RwFlags::NOWAIT;
            let refused = file.read_at_with(Buffer::from(vec![7; 9]), 0, flags).unwrap_err();
            assert!(matches!(refused.error, Error::Invalid(_)), "{}", refused.error);
            assert_eq!(&refused.buffer[..], [7; 9]);
        }
        // The kernel takes one piece.
        let pieces: Vec<_> = (0..2).map(|_| Buffer::from(vec![7; 1])).collect();
        let refused = file.write_at_with(pieces, 0, RwFlags::ATOMIC).unwrap_err();
        assert!(refused.error.to_string().contains("one request"), "{}", refused.error);
        assert_eq!(refused.buffer.len(), 2);
        // A file in the page cache is not written at once or not at all.
        let over = write(&driver, &file, Buffer::from(vec![7; 4096]), 0, RwFlags::ATOMIC);
        let error = over.result.unwrap_err();
        assert!(error.to_string().contains("RWF_ATOMIC"), "{error}");
        assert!(over.buffer[..] == [7; 4096]);
        assert_eq!(std_file.metadata().unwrap().len(), 0);
    }
}

mod guest {
    use super::*;

    const DISK: &str = "/dev/disk/by-id/nvme-tests";

    #[test]
    fn a_disk_takes_flags_past_the_page_cache() {
        for driver in drivers() {
            let direct = options(|it| it.read(true).write(true).direct(true));
            let disk = over(&driver, driver.open(DISK, &direct)).unwrap();
            assert!(disk.is_direct());
            let mut region = Region::anonymous(1 << 20).unwrap();
            if driver.ring_unavailable().is_none() {
                driver.register(&region).unwrap();
            }
            for flags in [RwFlags::DSYNC, RwFlags::SYNC, RwFlags::HIPRI, RwFlags::NOWAIT] {
                let over = write(&driver, &disk, filled(&mut region, 3, 8192), 4096, flags);
                match over.result {
                    Ok(len) => assert_eq!(len, 8192, "{flags:?}"),
                    // The page cache has what was read below, and would have to be asked to forget it.
                    Err(error) if flags == RwFlags::NOWAIT => assert_told(&error),
                    Err(error) => panic!("{flags:?}: {error}"),
                }
                let mut got = vec![0; 8192];
                File::open(DISK).unwrap().read_exact_at(&mut got, 4096).unwrap();
                assert!(got == pattern(3, 8192));
            }
            let mut block = region.take(4096).unwrap();
            block.copy_from_slice(&pattern(5, 4096));
            let odd = write(&driver, &disk, block, 512, RwFlags::ATOMIC);
            match over(&driver, disk.metadata()).unwrap().atomic_write() {
                Some(lens) => {
                    let mut block = odd.buffer;
                    block.set_len(*lens.end().min(&4096));
                    let over = write(&driver, &disk, block, 0, RwFlags::ATOMIC);
                    over.result.unwrap();
                }
                None => {
                    let error = odd.result.unwrap_err();
                    assert!(error.to_string().contains("RWF_ATOMIC"), "{error}");
                }
            }
        }
    }
}
