//! Taking requests of a block device, and giving their results.
//!
//! Minimum kernel, capability and return signal: as [`source::request`](crate::source::request) says.
//!
//! Contracts:
//! - each tag has a slot of the ring's table for good: the kernel fills it before it tells of a request,
//!   and clears it with the result;
//! - a tag is asked for once, and then with each result.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use handoff_sys::ublk::{self, Descriptor, TagCommand};
use io_uring::{opcode, squeue};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::driver::{Backend, Inner};
use crate::endpoint::{Endpoint, with_target};
use crate::error::{Error, Result};
use crate::inflight::Token;
use crate::source::memory::page_size;
use crate::source::request::{Answer, QueueShared, Served};

/// The device's descriptions of a queue's requests, mapped.
pub(crate) struct Descriptors {
    address: NonNull<Descriptor>,
    depth: u16,
}

impl Descriptors {
    fn map(device: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let room = |depth: u16| {
            (usize::from(depth) * ublk::DESCRIPTOR_BYTES).next_multiple_of(page_size())
        };
        let offset = usize::from(queue) * room(ublk::MAX_QUEUE_DEPTH);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap(ptr::null_mut(), room(depth), ProtFlags::READ, flags, device, offset as u64)?
        };
        Ok(Self { address: NonNull::new(address.cast()).expect("not null"), depth })
    }

    /// That of the request that has arrived with a tag.
    pub(crate) fn of(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "a request has one of the queue's tags");
        // SAFETY: inside of the mapping, which has one for each tag; the driver does not write it before
        // the request is answered.
        unsafe { self.address.as_ptr().add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let len = (usize::from(self.depth) * ublk::DESCRIPTOR_BYTES).next_multiple_of(page_size());
        // SAFETY: the mapping is ours, and descriptions are copied out of it.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), len) };
    }
}

/// Asks a queue of a device for requests.
pub(crate) fn open(
    inner: &Rc<Inner>,
    device: OwnedFd,
    number: u16,
    depth: u16,
) -> Result<Rc<QueueShared>> {
    let ring = inner.ring_id();
    if ring == 0 {
        return Err(inner.no_ring("serving a block device"));
    }
    if !(1..=ublk::MAX_QUEUE_DEPTH).contains(&depth) {
        return Err(Error::Invalid("a queue of a block device has a depth of 1 to 4096"));
    }
    let descriptors = Descriptors::map(&device, number, depth)
        .map_err(|error| Error::io("mapping the requests of a block device", error))?;
    let place = inner.request_queues.borrow().len();
    let place = u16::try_from(place).map_err(|_| Error::Invalid("a driver has 65536 queues"))?;
    let first_slot = inner.take_buffers(depth).ok_or(Error::Invalid(
        "the ring's table of registered buffers has no room for the queue's requests \
         (DriverBuilder::registered_buffers)",
    ))?;
    let queue = Rc::new(QueueShared {
        driver: Rc::downgrade(inner),
        ring,
        place,
        number,
        depth,
        first_slot,
        arrived: RefCell::default(),
        gone: Cell::new(0),
        failure: Cell::new(None),
        abandoned: Cell::new(false),
        waker: RefCell::default(),
    });
    // Before the first tag is asked for, whose request may be told of at any time.
    let device = Endpoint::attach(inner, device);
    let served = Served { queue: Rc::clone(&queue), device, descriptors };
    inner.request_queues.borrow_mut().push(served);
    for tag in 0..depth {
        push(inner, &queue, tag, ublk::U_IO_FETCH_REQ, 0).map_err(|error| {
            queue.abandoned.set(true);
            Error::io("asking for requests of a block device", error)
        })?;
    }
    inner.attend();
    Ok(queue)
}

fn push(
    inner: &Inner,
    queue: &QueueShared,
    tag: u16,
    operation: u32,
    result: i32,
) -> io::Result<()> {
    let Backend::Ring(ring) = &inner.backend else { unreachable!("a queue has a ring") };
    let mut ring = ring.borrow_mut();
    ring.make_room(1)?;
    let command = TagCommand { queue_id: queue.number, tag, result }.to_entry_bytes();
    let slot = u64::from(queue.first_slot + tag);
    let queues = inner.request_queues.borrow();
    let entry: squeue::Entry = with_target!(queues[usize::from(queue.place)].device, |fd| {
        opcode::UringCmd16::new(fd, operation).addr(Some(slot)).cmd(command).build()
    });
    let entry = entry.user_data(Token::of_request(queue.place, tag).to_user_data());
    // SAFETY: all of the command is in the entry, whose address is a slot's number.
    unsafe { ring.push(&entry) };
    Ok(())
}

/// A request has arrived, or none comes with this tag any more.
pub(crate) fn completed(inner: &Inner, place: u16, tag: u16, result: i32) {
    let queue = Rc::clone(&inner.request_queues.borrow()[usize::from(place)].queue);
    match result {
        0 if queue.abandoned.get() => drop(Answer::of(&queue, tag)),
        0 => queue.arrived.borrow_mut().push_back(tag),
        error => {
            queue.gone.set(queue.gone.get() + 1);
            if error != -libc::ENODEV {
                queue.failure.set(Some(-error));
            }
        }
    }
    inner.news.set(true);
    let waker = queue.waker.borrow_mut().take();
    inner.wake(waker);
}

/// Gives the results of requests whose memory nobody uses any more; those for which there is no room
/// wait.
pub(crate) fn give_marked(inner: &Inner) {
    loop {
        let marked = inner.answers.borrow_mut().pop();
        let Some((queue, tag, result)) = marked else { return };
        if push(inner, &queue, tag, ublk::U_IO_COMMIT_AND_FETCH_REQ, result).is_err() {
            return inner.answers.borrow_mut().push((queue, tag, result));
        }
    }
}
