//! Pipes with and without a ring: waiting neither blocks the thread nor spins, and can be dropped.

use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use handoff::{Buffer, Driver, Region, RingUse, Wait};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

fn drivers() -> Vec<Driver> {
    vec![Driver::new().unwrap(), Driver::builder().ring(RingUse::Avoid).build().unwrap()]
}

fn buffer(len: usize) -> Buffer {
    Region::anonymous(len).unwrap().take(len).unwrap()
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_empty_pipe_is_waited_for() {
    for driver in drivers() {
        for nonblocking in [false, true] {
            let (read, mut write) = std::io::pipe().unwrap();
            if nonblocking {
                fcntl_setfl(&read, fcntl_getfl(&read).unwrap() | OFlags::NONBLOCK).unwrap();
            }
            let file = driver.file(OwnedFd::from(read)).unwrap();
            let mut reading = pin!(file.read(buffer(64)).unwrap());
            let mut context = Context::from_waker(Waker::noop());
            let before = cpu();
            for _ in 0..10 {
                driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
                assert!(reading.as_mut().poll(&mut context).is_pending());
            }
            assert!(cpu() - before < Duration::from_millis(50), "it spins");
            write.write_all(b"seven..").unwrap();
            let read = driver.block_on(reading).unwrap();
            assert_eq!((read.result.unwrap(), &read.buffer[..7]), (7, &b"seven.."[..]));
            drop(write);
            let end = driver.block_on(file.read(read.buffer).unwrap()).unwrap();
            assert_eq!(end.result.unwrap(), 0);
        }
    }
}

#[test]
fn a_full_pipe_is_waited_for() {
    for driver in drivers() {
        for nonblocking in [false, true] {
            let (read, write) = std::io::pipe().unwrap();
            if nonblocking {
                fcntl_setfl(&write, fcntl_getfl(&write).unwrap() | OFlags::NONBLOCK).unwrap();
            }
            let file = driver.file(OwnedFd::from(write)).unwrap();
            let mut sent = buffer(1 << 20);
            for (place, byte) in sent.iter_mut().enumerate() {
                *byte = (place % 251) as u8;
            }
            let expected = sent.to_vec();
            let reader = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                let mut all = Vec::new();
                (&read).read_to_end(&mut all).unwrap();
                all
            });
            let written = driver.block_on(file.write(sent).unwrap()).unwrap();
            assert_eq!(written.result.unwrap(), 1 << 20);
            drop(file);
            assert!(reader.join().unwrap() == expected);
        }
    }
}

#[test]
fn a_wait_without_reading_leaves_the_bytes_and_can_be_dropped() {
    for driver in drivers() {
        let (read, mut write) = std::io::pipe().unwrap();
        let file = driver.file(OwnedFd::from(read)).unwrap();
        drop(file.readable().unwrap());
        drop(file.read(buffer(16)).unwrap());
        driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
        driver.turn(Wait::No).unwrap();
        assert_eq!(driver.in_flight(), 0);
        let mut readable = pin!(file.readable().unwrap());
        let mut context = Context::from_waker(Waker::noop());
        driver.turn(Wait::No).unwrap();
        assert!(matches!(readable.as_mut().poll(&mut context), Poll::Pending));
        write.write_all(b"here").unwrap();
        driver.block_on(readable).unwrap().unwrap();
        let read = driver.block_on(file.read(buffer(16)).unwrap()).unwrap();
        assert_eq!(read.result.unwrap(), 4);
    }
}

#[test]
fn a_receiver_that_waits_can_be_dropped() {
    for driver in drivers() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = driver.socket(OwnedFd::from(near)).unwrap();
        let pool = driver.pool(Region::anonymous(8192).unwrap(), 4096).unwrap();
        let receiver = socket.receive(&pool).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(receiver);
        driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
        assert_eq!(driver.in_flight(), 0);
    }
}
