//! Requests that the program makes itself, and the ring's descriptor.

use std::cell::Cell;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use handoff::{Driver, Error, Wait};
use io_uring::{opcode, squeue, types};

use crate::traffic::{self, within, without_ring};

const LONG: Duration = Duration::from_secs(30);

fn with_ring(test: &str) -> Option<Driver> {
    let driver = Driver::new().unwrap();
    match driver.ring_unavailable() {
        Some(reason) => {
            traffic::skip(test, reason);
            None
        }
        None => Some(driver),
    }
}

/// Memory for a read, which tells of its end.
struct Room {
    bytes: Box<[u8]>,
    ends: Rc<Cell<usize>>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.ends.set(self.ends.get() + 1);
    }
}

fn read(from: &impl AsRawFd, ends: &Rc<Cell<usize>>) -> (squeue::Entry, Room) {
    let mut room = Room { bytes: vec![0; 16].into(), ends: Rc::clone(ends) };
    let entry = opcode::Read::new(types::Fd(from.as_raw_fd()), room.bytes.as_mut_ptr(), 16).build();
    (entry, room)
}

#[test]
fn a_request_of_any_kind_gives_its_result_and_its_owner() {
    within(LONG, || {
        let test = "raw::a_request_of_any_kind_gives_its_result_and_its_owner";
        let Some(driver) = with_ring(test) else { return };
        let path = CString::new("/proc/self/status").unwrap();
        let at = path.as_ptr();
        let entry = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), at).build();
        // SAFETY: the path is on the heap, and the owner has it.
        let request = unsafe { driver.raw_request(entry, path) }.unwrap();
        let opened = driver.block_on(request).unwrap().unwrap();
        assert_eq!(opened.owner.as_ptr(), at);
        assert!(opened.result >= 0, "{}", opened.result);
        // SAFETY: the kernel has just opened it for us.
        let file = unsafe { OwnedFd::from_raw_fd(opened.result) };
        let ends = Rc::default();
        let (entry, room) = read(&file, &ends);
        // SAFETY: the owner has the memory on the heap; the file is open until the end.
        let request = unsafe { driver.raw_request(entry, room) }.map_err(|it| it.error).unwrap();
        let got = driver.block_on(request).unwrap().unwrap();
        assert_eq!((got.result, &got.owner.bytes[..5]), (16, &b"Name:"[..]));
        // An error is the kernel's number.
        let entry = opcode::Close::new(types::Fd(-1)).build();
        // SAFETY: it names nothing.
        let request = unsafe { driver.raw_request(entry, ()) }.unwrap();
        assert_eq!(driver.block_on(request).unwrap().unwrap().result, -libc::EBADF);
        assert_eq!(driver.in_flight(), 0);
        assert!(driver.ring_fd().is_some());
    });
}

/// The owner stays until the kernel has let go, however the request is given up.
#[test]
fn a_request_that_is_given_up_keeps_its_owner_until_it_is_over() {
    within(LONG, || {
        let test = "raw::a_request_that_is_given_up_keeps_its_owner_until_it_is_over";
        let Some(driver) = with_ring(test) else { return };
        let ends = Rc::new(Cell::new(0));
        let (reader, mut writer) = std::io::pipe().unwrap();
        // Before it is submitted, and when the kernel waits.
        for turns in 0..2 {
            let (entry, room) = read(&reader, &ends);
            // SAFETY: the owner has the memory on the heap; the pipe is open until the end.
            let request = unsafe { driver.raw_request(entry, room) }.map_err(|it| it.error);
            let request = request.unwrap();
            for _ in 0..turns {
                driver.turn(Wait::No).unwrap();
            }
            drop(request);
            assert_eq!(ends.get(), turns, "the kernel has it");
            while driver.in_flight() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
            assert_eq!(ends.get(), turns + 1);
        }
        // Cancelled, it brings its owner back.
        let (entry, room) = read(&reader, &ends);
        // SAFETY: as above.
        let request = unsafe { driver.raw_request(entry, room) }.map_err(|it| it.error).unwrap();
        driver.turn(Wait::No).unwrap();
        request.cancel();
        let got = driver.block_on(request).unwrap().unwrap();
        assert!(matches!(-got.result, libc::ECANCELED | libc::EINTR), "{}", got.result);
        drop(got);
        assert_eq!(ends.get(), 3);
        // And one that goes with its driver.
        let (entry, room) = read(&reader, &ends);
        // SAFETY: as above.
        let request = unsafe { driver.raw_request(entry, room) }.map_err(|it| it.error).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(driver);
        drop(request);
        assert_eq!(ends.get(), 4);
        writer.write_all(b"late").unwrap();
    });
}

/// A closing driver's question does not find what the kernel begins only then.
#[test]
fn a_request_that_begins_while_its_driver_goes_ends_too() {
    within(LONG, || {
        let test = "raw::a_request_that_begins_while_its_driver_goes_ends_too";
        let Some(driver) = with_ring(test) else { return };
        let ends = Rc::new(Cell::new(0));
        let (reader, writer) = std::io::pipe().unwrap();
        // The second waits for the end of the first.
        let requests = [squeue::Flags::empty(), squeue::Flags::IO_DRAIN].map(|flags| {
            let (entry, room) = read(&reader, &ends);
            // SAFETY: the owner has the memory on the heap; the pipe is open until the end.
            let request = unsafe { driver.raw_request(entry.flags(flags), room) };
            request.map_err(|it| it.error).unwrap()
        });
        driver.turn(Wait::No).unwrap();
        drop(driver);
        for request in requests {
            let ended = request.try_take().expect("the driver has taken its end");
            assert!(matches!(-ended.result, libc::ECANCELED | libc::EINTR), "{}", ended.result);
        }
        drop(writer);
    });
}

#[test]
fn what_can_be_no_raw_request_is_refused_with_its_owner() {
    let refused = |driver: &Driver, flags: squeue::Flags| {
        let entry = opcode::Nop::new().build().flags(flags);
        // SAFETY: it names nothing.
        let refused = unsafe { driver.raw_request(entry, "mine".to_owned()) };
        let refused = refused.expect_err("it is none");
        assert_eq!(refused.buffer, "mine");
        refused.error
    };
    let error = refused(&without_ring(), squeue::Flags::empty());
    assert!(matches!(error, Error::NoRing { .. }), "{error}");
    assert!(without_ring().ring_fd().is_none());
    let Some(driver) = with_ring("raw::what_can_be_no_raw_request_is_refused_with_its_owner")
    else {
        return;
    };
    assert!(refused(&driver, squeue::Flags::IO_LINK).to_string().contains("a link"));
    assert!(refused(&driver, squeue::Flags::SKIP_SUCCESS).to_string().contains("completion"));
    let driver = Driver::builder().in_flight(0).build().unwrap();
    assert!(matches!(refused(&driver, squeue::Flags::empty()), Error::Busy { limit: 0 }));
}
