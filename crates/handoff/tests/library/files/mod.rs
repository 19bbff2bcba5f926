//! Files and pipes, with a ring and without: here reads and writes; what moves no bytes in the modules.

mod calls;
#[allow(dead_code, unreachable_pub, reason = "it is a program")]
#[path = "../../../examples/keep_log.rs"]
mod example;
mod flags;
mod opening;
mod pipes;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use handoff::{Append, Buffer, Driver, Error, Region, Transfer, Transferred, Wait};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::traffic::{self, drivers, filled, pattern, with_each_driver, within};

const LONG: Duration = Duration::from_secs(30);

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn read_at(driver: &Driver, file: &handoff::File, len: usize, offset: u64) -> Transferred<Buffer> {
    let read = file.read_at(Buffer::from(vec![0xee; len]), offset).unwrap();
    driver.block_on(read).unwrap().unwrap()
}

#[test]
fn a_file_system_in_memory_is_not_past_its_page_cache() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [0; 4096]).unwrap();
    // Older kernels refuse the flag there; that claims nothing either.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    match opened {
        Ok(file) => assert!(!Driver::new().unwrap().file(file).unwrap().is_direct()),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL)),
    }
}

#[test]
fn reads_fill_the_buffer_or_reach_the_end() {
    for driver in drivers() {
        let file = driver.file(file_of(&pattern(1, 100_000))).unwrap();
        for (len, offset, expected) in [
            (100_000, 0, 100_000),
            (1000, 99_500, 500),
            (200_000, 0, 100_000),
            (10, 100_000, 0),
            (10, 1 << 40, 0),
            (0, 5, 0),
        ] {
            let over = read_at(&driver, &file, len, offset);
            assert_eq!(over.result.unwrap(), expected, "{len} {offset}");
            assert_eq!(over.buffer.len(), len);
            let offset = offset.min(100_000) as usize;
            assert!(over.buffer[..expected] == pattern(1, 100_000)[offset..offset + expected]);
            assert!(over.buffer[expected..].iter().all(|byte| *byte == 0xee));
        }
        assert_eq!(driver.in_flight(), 0);
    }
}

#[test]
fn writes_land_where_they_are_told() {
    for driver in drivers() {
        let std_file = tempfile::tempfile().unwrap();
        let file = driver.file(std_file.try_clone().unwrap()).unwrap();
        assert!(!file.is_direct());
        let mut region = Region::anonymous(1 << 20).unwrap();
        if driver.ring_unavailable().is_none() {
            driver.register(&region).unwrap();
        }
        let lens = [1000, 0, 70_000, 1, 0];
        let pieces: Vec<_> =
            lens.iter().enumerate().map(|(seed, len)| filled(&mut region, seed, *len)).collect();
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let whole = file.write_at(pieces, 10).unwrap();
        let far = file.write_at(filled(&mut region, 9, 100), 1 << 20).unwrap();
        let over = driver.block_on(whole).unwrap().unwrap();
        assert_eq!(over.result.unwrap(), expected.len());
        assert_eq!(over.buffer.iter().map(|piece| piece.len()).collect::<Vec<_>>(), lens);
        assert_eq!(driver.block_on(far).unwrap().unwrap().result.unwrap(), 100);
        let mut got = vec![1; expected.len() + 10];
        std_file.read_exact_at(&mut got, 0).unwrap();
        assert!(got[..10] == [0; 10] && got[10..] == expected);
        let mut got = vec![0; 100];
        std_file.read_exact_at(&mut got, 1 << 20).unwrap();
        assert!(got == pattern(9, 100));
    }
}

#[test]
fn failures_are_told_with_the_buffer() {
    for driver in drivers() {
        let read_only = driver.file(File::open("/dev/zero").unwrap()).unwrap();
        let write = read_only.write_at(Buffer::from(vec![7; 9]), 0).unwrap();
        let over = driver.block_on(write).unwrap().unwrap();
        assert_eq!(over.result.unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(&over.buffer[..], [7; 9]);
        let full = driver.file(OpenOptions::new().write(true).open("/dev/full").unwrap()).unwrap();
        let over = driver.block_on(full.write(Buffer::from(vec![7; 9])).unwrap()).unwrap().unwrap();
        assert_eq!(over.result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        // Beyond any offset of a file: -1 would mean the file's own position.
        for offset in [u64::MAX, 1 << 63] {
            let refused = read_only.read_at(Buffer::from(vec![7; 9]), offset).unwrap_err();
            assert!(matches!(refused.error, Error::Invalid(_)), "{}", refused.error);
            assert_eq!(&refused.buffer[..], [7; 9]);
        }
    }
}

#[test]
fn direct_files_are_read_to_their_unaligned_end() {
    const NAME: &str = "direct_files_are_read_to_their_unaligned_end";
    // A place on a disk: /tmp may be memory, which older kernels know no O_DIRECT for.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().join("direct");
    std::fs::write(&path, pattern(3, 10_000)).unwrap();
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    let direct = match direct {
        Ok(direct) => direct,
        Err(error) => return traffic::skip(NAME, &format!("no O_DIRECT here: {error}")),
    };
    for driver in drivers() {
        let file = driver.file(direct.try_clone().unwrap()).unwrap();
        assert!(file.is_direct());
        let mut region = Region::anonymous(64 << 10).unwrap();
        if driver.ring_unavailable().is_none() {
            driver.register(&region).unwrap();
        }
        let buffer = region.take(16 << 10).unwrap();
        let over = driver.block_on(file.read_at(buffer, 0).unwrap()).unwrap().unwrap();
        assert_eq!(over.result.unwrap(), 10_000);
        assert!(over.buffer[..10_000] == pattern(3, 10_000));
        let block = filled(&mut region, 4, 4096);
        let over = driver.block_on(file.write_at(block, 4096).unwrap()).unwrap().unwrap();
        assert_eq!(over.result.unwrap(), 4096);
        let mut got = vec![0; 4096];
        File::open(&path).unwrap().read_exact_at(&mut got, 4096).unwrap();
        assert!(got == pattern(4, 4096));
        std::fs::write(&path, pattern(3, 10_000)).unwrap();
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = std::io::pipe().unwrap();
    (read.into(), write.into())
}

fn make_nonblocking(end: &OwnedFd) {
    fcntl_setfl(end, fcntl_getfl(end).unwrap() | OFlags::NONBLOCK).unwrap();
}

/// How long the far end keeps a thread waiting.
const WAIT: Duration = Duration::from_millis(300);

/// Runs something that waits for at least [`WAIT`], and panics if the thread worked for most of it. Three times at
/// most: what a guest's processor is kept from running also counts as work.
fn without_work(mut waits: impl FnMut()) {
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let rests = |_| {
        let (start, before) = (Instant::now(), cpu());
        waits();
        let (took, work) = (start.elapsed(), cpu() - before);
        assert!(took >= WAIT, "{took:?}");
        work < took * 2 / 3
    };
    assert!((0..3).any(rests), "it works while it waits");
}

#[test]
fn pipes_give_what_there_is_and_take_all() {
    within(LONG, || {
        for nonblocking in [false, true] {
            for driver in drivers() {
                let (read, write) = pipe();
                let mut far = File::from(write);
                far.write_all(b"handoff").unwrap();
                if nonblocking {
                    make_nonblocking(&read);
                }
                let file = driver.file(read).unwrap();
                let buffer = Buffer::from(vec![0; 100]);
                let over = driver.block_on(file.read(buffer).unwrap()).unwrap().unwrap();
                assert_eq!(over.result.unwrap(), 7);
                assert_eq!(&over.buffer[..7], b"handoff");
                drop(far);
                let over = driver.block_on(file.read(over.buffer).unwrap()).unwrap().unwrap();
                assert_eq!(over.result.unwrap(), 0);

                without_work(|| {
                    let (read, write) = pipe();
                    if nonblocking {
                        make_nonblocking(&write);
                    }
                    let file = driver.file(write).unwrap();
                    let reader = thread::spawn(move || {
                        thread::sleep(WAIT);
                        let mut all = Vec::new();
                        File::from(read).read_to_end(&mut all).unwrap();
                        all
                    });
                    let write = file.write(Buffer::from(pattern(1, 300_000))).unwrap();
                    let over = driver.block_on(write).unwrap().unwrap();
                    assert_eq!(over.result.unwrap(), 300_000);
                    drop(file);
                    assert!(reader.join().unwrap() == pattern(1, 300_000));
                });
                assert_eq!(driver.in_flight(), 0);
            }
        }
    });
}

#[test]
fn a_read_of_an_empty_pipe_waits_without_work_and_holds_nobody() {
    within(LONG, || {
        for nonblocking in [false, true] {
            for driver in drivers() {
                without_work(|| {
                    let (read, write) = pipe();
                    if nonblocking {
                        make_nonblocking(&read);
                    }
                    let file = driver.file(read).unwrap();
                    // Nobody writes before it has returned.
                    let read = file.read(Buffer::from(vec![0; 100])).unwrap();
                    let writer = thread::spawn(move || {
                        thread::sleep(WAIT);
                        File::from(write).write_all(b"handoff").unwrap();
                    });
                    let over = driver.block_on(read).unwrap().unwrap();
                    assert_eq!(over.result.unwrap(), 7);
                    writer.join().unwrap();
                });
            }
        }
    });
}

/// Turns until one of them is over, and takes it out.
fn first_over(driver: &Driver, under_way: &mut Vec<Transfer<Buffer>>) -> Vec<u8> {
    loop {
        for place in 0..under_way.len() {
            match under_way.remove(place).try_take() {
                Ok(over) => return over.buffer[..over.result.unwrap()].to_vec(),
                Err(again) => under_way.insert(place, again),
            }
        }
        driver.turn(Wait::Event).unwrap();
    }
}

/// One event wakes all who wait for the pipe, and the first may leave nothing for the next.
#[test]
fn two_who_wait_for_a_pipe_block_nobody() {
    with_each_driver(LONG, |driver| {
        let (read, write) = pipe();
        let (reading, mut feed) = (driver.file(read).unwrap(), File::from(write));
        let read = |_| reading.read(Buffer::from(vec![0; 8])).unwrap();
        let mut reads: Vec<_> = (0..2).map(read).collect();
        driver.turn(Wait::No).unwrap();
        for bytes in [b"first", b"other"] {
            feed.write_all(bytes).unwrap();
            assert_eq!(first_over(&driver, &mut reads), bytes);
        }

        let (read, write) = pipe();
        let (mut drain, writing) = (File::from(read), driver.file(write).unwrap());
        let write = |len| writing.write(Buffer::from(vec![0; len])).unwrap();
        driver.block_on(write(1 << 16)).unwrap().unwrap().result.unwrap();
        let mut writes = vec![write(4096), write(4096)];
        driver.turn(Wait::No).unwrap();
        for _ in 0..2 {
            drain.read_exact(&mut [0; 4096]).unwrap();
            assert_eq!(first_over(&driver, &mut writes).len(), 4096);
        }
    });
}

#[test]
fn a_vector_grows_by_what_is_read_and_by_nothing_else() {
    with_each_driver(LONG, |driver| {
        let bytes = pattern(1, 100_000);
        let file = driver.file(file_of(&bytes)).unwrap();
        for (room, offset, expected) in
            [(100_000, 0, 100_000), (1000, 99_500, 500), (10, 100_000, 0), (0, 5, 0)]
        {
            let read = file.read_at(Append::to(b"begins".to_vec(), room), offset as u64);
            let read = driver.block_on(read.unwrap()).unwrap().unwrap();
            assert_eq!(read.result.unwrap(), expected);
            assert_eq!(read.buffer.room(), room - expected);
            let all = [b"begins", &bytes[offset..][..expected]].concat();
            assert!(read.buffer.into_vec() == all, "{room} at {offset}");
        }
        let write_only = tempfile::NamedTempFile::new().unwrap();
        let write_only = OpenOptions::new().write(true).open(write_only.path()).unwrap();
        let write_only = driver.file(write_only).unwrap();
        let read = write_only.read_at(Append::to(b"begins".to_vec(), 10), 0).unwrap();
        let failed = driver.block_on(read).unwrap().unwrap();
        failed.result.unwrap_err();
        assert_eq!(failed.buffer.into_vec(), b"begins");
        // A pipe gives what there is; a forgotten read keeps its vector until the ring has closed.
        let (read, write) = pipe();
        File::from(write.try_clone().unwrap()).write_all(b" and ends").unwrap();
        let read = driver.file(read).unwrap();
        let some = read.read(Append::to(b"begins".to_vec(), 1 << 20)).unwrap();
        let some = driver.block_on(some).unwrap().unwrap();
        assert_eq!((some.result.unwrap(), some.buffer.room()), (9, (1 << 20) - 9));
        assert_eq!(some.buffer.into_vec(), b"begins and ends");
        std::mem::forget(read.read(Append::to(vec![1; 100], 100)).unwrap());
        driver.turn(Wait::No).unwrap();
        drop((read, file, write_only, driver));
        drop(write);
    });
}

#[test]
fn a_dropped_read_of_an_empty_pipe_is_cancelled() {
    within(LONG, || {
        for nonblocking in [false, true] {
            for with_driver in [false, true] {
                for forget in [false, true] {
                    for driver in drivers() {
                        let (read, write) = pipe();
                        if nonblocking {
                            make_nonblocking(&read);
                        }
                        let file = driver.file(read.try_clone().unwrap()).unwrap();
                        let reading = file.read(Buffer::from(vec![0; 100])).unwrap();
                        driver.turn(Wait::No).unwrap();
                        if forget {
                            std::mem::forget(reading);
                        } else {
                            drop(reading);
                            if !with_driver {
                                while driver.in_flight() > 0 {
                                    driver.turn(Wait::Event).unwrap();
                                }
                            }
                        }
                        drop((file, driver));
                        if !forget {
                            // Nobody takes these bytes from the other readers.
                            File::from(write).write_all(b"handoff").unwrap();
                            let mut got = String::new();
                            File::from(read).read_to_string(&mut got).unwrap();
                            assert_eq!(got, "handoff");
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn a_wait_without_reading_leaves_the_bytes_and_can_be_dropped() {
    for driver in drivers() {
        let (read, write) = pipe();
        let file = driver.file(read).unwrap();
        let buffer = || Buffer::from(vec![0; 16]);
        drop(file.readable().unwrap());
        drop(file.read(buffer()).unwrap());
        driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
        driver.turn(Wait::No).unwrap();
        assert_eq!(driver.in_flight(), 0);
        let mut readable = pin!(file.readable().unwrap());
        let mut context = Context::from_waker(Waker::noop());
        driver.turn(Wait::No).unwrap();
        assert!(matches!(readable.as_mut().poll(&mut context), Poll::Pending));
        File::from(write).write_all(b"here").unwrap();
        driver.block_on(readable).unwrap().unwrap();
        let read = driver.block_on(file.read(buffer()).unwrap()).unwrap().unwrap();
        assert_eq!(read.result.unwrap(), 4);
    }
}

/// The kernel ends the workers of a thread whose last ring has gone. A worker that is about to end
/// leaves undone what the thread's next ring gives it.
#[test]
fn the_kernels_workers_of_a_thread_stay_from_ring_to_ring() {
    let workers = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let paths = tasks.map(|task| task.path());
        let is_worker = |task: &PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|it| it.starts_with("iou-wrk-"))
        };
        paths.filter(is_worker).collect::<HashSet<_>>()
    };
    // Workers of other tests; the number in a name may be of another namespace.
    let before = workers();
    let driver = Driver::new().unwrap();
    if driver.ring_unavailable().is_some() {
        return;
    }
    // Writes to a file system in memory always go to a worker.
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let write = driver.file(file).unwrap().write_at(Buffer::from(vec![1; 4096]), 0).unwrap();
    assert_eq!(driver.block_on(write).unwrap().unwrap().result.unwrap(), 4096);
    let ours: Vec<_> = workers().difference(&before).cloned().collect();
    assert!(!ours.is_empty(), "no worker did it");
    drop(driver);
    thread::sleep(Duration::from_millis(100));
    assert!(ours.iter().any(|worker| worker.exists()), "the worker has ended");
}

#[test]
fn pieces_are_written_and_read_by_one_request() {
    for driver in drivers() {
        let mut region = Region::anonymous(1 << 20).unwrap();
        if driver.ring_unavailable().is_none() {
            driver.register(&region).unwrap();
        }
        // More than one request takes, some of them empty.
        let lens: Vec<usize> = (0..1_500).map(|number| number % 7 * 50).collect();
        let pieces: Vec<_> =
            lens.iter().enumerate().map(|(seed, len)| filled(&mut region, seed, *len)).collect();
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let file = driver.file(tempfile::tempfile().unwrap()).unwrap();
        let over = driver.block_on(file.write_at(pieces, 5).unwrap()).unwrap().unwrap();
        assert_eq!(over.result.unwrap(), expected.len());
        let mut pieces = over.buffer;
        pieces.iter_mut().for_each(|piece| piece.fill(0));
        // Past the end by one piece and a half.
        let over = driver.block_on(file.read_at(pieces, 455).unwrap()).unwrap().unwrap();
        assert_eq!(over.result.unwrap(), expected.len() - 450);
        let got: Vec<u8> = over.buffer.iter().flat_map(|piece| piece.to_vec()).collect();
        assert!(got[..expected.len() - 450] == expected[450..]);
        assert!(got[expected.len() - 450..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn pieces_enter_a_pipe_together() {
    for driver in drivers() {
        if driver.ring_unavailable().is_some() {
            continue;
        }
        // Each write is a packet, and a read takes one.
        let (reader, writer) = pipe_with(PipeFlags::DIRECT).unwrap();
        let file = driver.file(writer).unwrap();
        let pieces: Vec<_> = (0..5).map(|seed| Buffer::from(pattern(seed, 100))).collect();
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        driver.block_on(file.write(pieces).unwrap()).unwrap().unwrap().result.unwrap();
        let mut got = vec![0; 1_000];
        assert_eq!(rustix::io::read(&reader, &mut got).unwrap(), 500);
        assert!(got[..500] == expected);
    }
}

/// A file whose driver has `read` and `write` only, as many in /proc and /dev have.
#[test]
fn pieces_of_a_file_that_knows_no_vectors_are_filled() {
    static CONTENT: [u8; 300] = [7; 300];
    for driver in drivers() {
        for registered in [false, true] {
            if registered && driver.ring_unavailable().is_some() {
                continue;
            }
            let mut region = Region::anonymous(1 << 20).unwrap();
            if registered {
                driver.register(&region).unwrap();
            }
            let file = driver.file(File::open("/proc/self/mem").unwrap()).unwrap();
            let pieces: Vec<_> = (0..3).map(|seed| filled(&mut region, seed, 100)).collect();
            let reading = file.read_at(pieces, CONTENT.as_ptr() as u64).unwrap();
            let over = driver.block_on(reading).unwrap().unwrap();
            let got: Vec<u8> = over.buffer.iter().flat_map(|piece| piece.to_vec()).collect();
            assert_eq!(over.result.unwrap(), 300, "registered {registered}");
            assert!(got == CONTENT, "registered {registered}: {got:?}");
        }
    }
}

#[test]
fn pieces_are_written_to_a_file_that_knows_no_vectors() {
    for driver in drivers() {
        for registered in [false, true] {
            if registered && driver.ring_unavailable().is_some() {
                continue;
            }
            // The kernel writes to it behind the compiler's back.
            let target: [AtomicU8; 300] = std::array::from_fn(|_| AtomicU8::new(0));
            let mut region = Region::anonymous(1 << 20).unwrap();
            if registered {
                driver.register(&region).unwrap();
            }
            let opened = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
            let file = driver.file(opened).unwrap();
            let pieces: Vec<_> = (0..3).map(|seed| filled(&mut region, seed, 100)).collect();
            let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let writing = file.write_at(pieces, target.as_ptr() as u64).unwrap();
            assert_eq!(driver.block_on(writing).unwrap().unwrap().result.unwrap(), 300);
            let got: Vec<u8> = target.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
            assert!(got == expected, "registered {registered}: {got:?}");
        }
    }
}

mod guest {
    use super::*;

    /// Together they fill blocks; the first 1,024, which one request takes, do not.
    #[test]
    fn many_pieces_fill_blocks_of_a_disk() {
        for driver in drivers() {
            let file = disk(&driver);
            let mut region = Region::anonymous(1_200 * 4096).unwrap();
            let mut lens = vec![4];
            lens.extend([PIECE; 1_100]);
            lens.push(4096 - lens.iter().sum::<usize>() % 4096);
            let total: usize = lens.iter().sum();
            let pieces: Vec<_> = (0..)
                .zip(&lens)
                .map(|(seed, len)| {
                    let mut page = region.take(4096).unwrap();
                    page.set_len(*len);
                    page.copy_from_slice(&pattern(seed, *len));
                    page
                })
                .collect();
            let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let over = driver.block_on(file.write_at(pieces, 0).unwrap()).unwrap().unwrap();
            assert_eq!(over.result.unwrap(), total);
            let mut there = vec![0; total];
            File::open(DISK).unwrap().read_exact_at(&mut there, 0).unwrap();
            assert!(there == expected);
            // What is read takes the same pieces.
            let over = driver.block_on(file.read_at(over.buffer, 0).unwrap()).unwrap().unwrap();
            assert_eq!(over.result.unwrap(), total);
            let got: Vec<u8> = over.buffer.iter().flat_map(|piece| piece.to_vec()).collect();
            assert!(got == expected);
        }
    }

    const DISK: &str = "/dev/disk/by-id/nvme-tests";
    const PIECE: usize = 1_448;
    const PIECES: usize = 46;
    const LEN: usize = 64 << 10;

    fn disk(driver: &Driver) -> handoff::File {
        let opened =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(DISK);
        driver.file(opened.expect("the guest has the disk")).unwrap()
    }

    /// As a NIC puts packets into an area: each begins at a page, or some bytes behind it.
    fn pieces(region: &mut Region, behind: usize) -> Vec<Buffer> {
        let mut left = LEN;
        (0..PIECES)
            .map(|seed| {
                let mut page = region.take(4096).unwrap();
                drop(page.split_to(behind));
                let len = left.min(PIECE);
                left -= len;
                page.set_len(len);
                page.copy_from_slice(&pattern(seed, len));
                page
            })
            .collect()
    }

    #[test]
    fn pieces_of_packets_fill_blocks_of_a_disk() {
        for driver in drivers() {
            let file = disk(&driver);
            assert_eq!(file.alignment(), Some(handoff::Alignment { memory: 4, blocks: 512 }));
            for registered in [false, true] {
                if registered && driver.ring_unavailable().is_some() {
                    continue;
                }
                let mut region = Region::anonymous(2 * PIECES * 4096).unwrap();
                if registered {
                    driver.register(&region).unwrap();
                }
                for behind in [0, 28] {
                    let pieces = pieces(&mut region, behind);
                    let expected: Vec<u8> =
                        pieces.iter().flat_map(|piece| piece.to_vec()).collect();
                    let over =
                        driver.block_on(file.write_at(pieces, 8192).unwrap()).unwrap().unwrap();
                    assert_eq!(over.result.unwrap(), LEN);
                    let mut pieces = over.buffer;
                    pieces.iter_mut().for_each(|piece| piece.fill(0));
                    let over =
                        driver.block_on(file.read_at(pieces, 8192).unwrap()).unwrap().unwrap();
                    assert_eq!(over.result.unwrap(), LEN);
                    let got: Vec<u8> =
                        over.buffer.iter().flat_map(|piece| piece.to_vec()).collect();
                    assert!(got == expected);
                    let mut got = vec![0; LEN];
                    File::open(DISK).unwrap().read_exact_at(&mut got, 8192).unwrap();
                    assert!(got == expected);
                }
            }
        }
    }

    #[test]
    fn pieces_at_odd_places_are_refused_and_come_back() {
        for driver in drivers() {
            let file = disk(&driver);
            let mut region = Region::anonymous(PIECES * 4096).unwrap();
            let pieces = pieces(&mut region, 30);
            let over = driver.block_on(file.write_at(pieces, 0).unwrap()).unwrap().unwrap();
            assert_eq!(over.result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(over.buffer.len(), PIECES);
            assert!(over.buffer[1][..] == pattern(1, PIECE));
        }
    }
}
