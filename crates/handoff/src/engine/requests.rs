//! Taking requests of a block device, and returning their results.
//!
//! Minimum kernel, capability and return signal: as [`lease::request`](crate::lease::request) says.
//!
//! Contracts:
//! - each tag keeps its slot of the ring's table: the kernel fills the slot before it reports a request,
//!   and clears it with the result;
//! - each tag is fetched once, and then with each result.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use handoff_sys::ublk::{self, TagCommand};
use io_uring::{opcode, squeue};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::lease::TagResult;
use crate::lease::request_queue::{Answer, Descriptors, QueueShared, Served};
use crate::ring::endpoint::with_target;
use crate::ring::{Endpoint, Token};

/// Fetches requests from a queue of a device.
pub(crate) fn open(
    core: &Core,
    device: OwnedFd,
    number: u16,
    depth: u16,
) -> Result<Rc<QueueShared>> {
    let ring = core.io.ring_id();
    if ring == 0 {
        return Err(core.io.no_ring("serving a block device"));
    }
    if !(1..=ublk::MAX_QUEUE_DEPTH).contains(&depth) {
        return Err(Error::Invalid("a queue of a block device has a depth of 1 to 4096"));
    }
    let descriptors = Descriptors::map(&device, number, depth)
        .map_err(|error| Error::io("mapping the requests of a block device", error))?;
    let place = core.request_queues.borrow().len();
    let place = u16::try_from(place).map_err(|_| Error::Invalid("a driver has 65536 queues"))?;
    let first_slot = core.io.take_buffers(depth).ok_or(Error::Invalid(
        "the ring's table of registered buffers has no room for the queue's requests \
         (DriverBuilder::registered_buffers)",
    ))?;
    let queue = Rc::new(QueueShared {
        pending: Rc::downgrade(&core.pending),
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
    // Before the first tag is fetched: its request may come at any time.
    let device = Endpoint::attach(&core.io, device);
    let served = Served { queue: Rc::clone(&queue), device, descriptors };
    core.request_queues.borrow_mut().push(served);
    for tag in 0..depth {
        let fetched = TagResult { queue: place, tag, result: 0 };
        push(core, ublk::U_IO_FETCH_REQ, fetched).map_err(|error| {
            queue.abandoned.set(true);
            Error::io("asking for requests of a block device", error)
        })?;
    }
    core.wakes().attend();
    Ok(queue)
}

/// Asks for the next request of a tag, and commits the result of the one before where the operation says so.
fn push(core: &Core, operation: u32, answer: TagResult) -> io::Result<()> {
    let TagResult { queue: place, tag, result } = answer;
    let mut ring = core.io.ring().expect("a queue has a ring").borrow_mut();
    ring.make_room(1)?;
    let queues = core.request_queues.borrow();
    let Served { queue, device, .. } = &queues[usize::from(place)];
    let command = TagCommand { queue_id: queue.number, tag, result }.to_entry_bytes();
    let slot = u64::from(queue.first_slot + tag);
    let entry: squeue::Entry = with_target!(device, |fd| {
        opcode::UringCmd16::new(fd, operation).addr(Some(slot)).cmd(command).build()
    });
    let entry = entry.user_data(Token::of_request(place, tag).to_user_data());
    // SAFETY: the entry contains the whole command, whose address is a slot's number.
    unsafe { ring.push(&entry) };
    Ok(())
}

/// A request has arrived, or this tag gets no more.
pub(crate) fn completed(core: &Core, place: u16, tag: u16, result: i32) {
    let queue = Rc::clone(&core.request_queues.borrow()[usize::from(place)].queue);
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
    core.news.set(true);
    let waker = queue.waker.borrow_mut().take();
    core.wakes().wake(waker);
}

/// Returns the results of requests whose memory nobody uses any more; results for which the ring has no
/// room wait.
pub(crate) fn give_marked(core: &Core) {
    loop {
        let marked = core.pending.answers.borrow_mut().pop();
        let Some(answer) = marked else { return };
        if push(core, ublk::U_IO_COMMIT_AND_FETCH_REQ, answer).is_err() {
            return core.pending.answers.borrow_mut().push(answer);
        }
    }
}
