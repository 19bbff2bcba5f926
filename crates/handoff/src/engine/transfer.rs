//! Reads and writes of a file, on registered buffers where they are registered.
//!
//! Contracts:
//! - a write goes on with the rest until all is written; a read at an offset goes on until the
//!   buffer is full or the file ends; a read without an offset gives what there is;
//! - a pipe that has nothing, or no room, is waited for, and never blocks the thread: without a ring
//!   it is asked first, with one only when its descriptor is non-blocking;
//! - the record owns the buffer until the last completion, also when nobody waits for it any more.

use std::io;
use std::rc::Rc;

use io_uring::{opcode, squeue};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::memory::AddressRange;
use crate::op::{Direction, Loan, TransferOp, TransferState};
use crate::ring::endpoint::with_target;
use crate::ring::token::{STAGE_READY, STAGE_TRANSFER};
use crate::ring::{Backend, Key, Ring, Token};

/// What a pipe that is ready for writing takes without blocking (`PIPE_BUF`).
const PIPE_ROOM: usize = 4096;

fn entry(op: &TransferOp, ring: &Ring) -> squeue::Entry {
    let (AddressRange { start, len, slot }, offset) = op.left(Some(ring.id));
    // The file's own position is named by -1.
    let offset = offset.unwrap_or(u64::MAX);
    let len = len as u32;
    with_target!(op.file, |fd| match (op.direction, slot) {
        (Direction::Read, Some(slot)) =>
            opcode::ReadFixed::new(fd, start, len, slot).offset(offset).build(),
        (Direction::Read, None) => opcode::Read::new(fd, start, len).offset(offset).build(),
        (Direction::Write, Some(slot)) =>
            opcode::WriteFixed::new(fd, start, len, slot).offset(offset).build(),
        (Direction::Write, None) => opcode::Write::new(fd, start, len).offset(offset).build(),
        (Direction::AwaitRead | Direction::AwaitWrite, _) =>
            opcode::PollAdd::new(fd, op.direction.events() as u32).build(),
    })
}

/// Whether a call would not block now. Several may wait for one event, of which the first to be told
/// leaves nothing for the others.
fn is_ready(op: &TransferOp) -> bool {
    let mut asked = libc::pollfd { fd: op.file.raw(), events: op.direction.events(), revents: 0 };
    // SAFETY: the entry is one, and lives through the call, which waits for nothing.
    unsafe { libc::poll(&raw mut asked, 1, 0) != 0 }
}

fn call(op: &TransferOp) -> i32 {
    if op.pollable && !is_ready(op) {
        return -libc::EAGAIN;
    }
    let (AddressRange { start, len, .. }, offset) = op.left(None);
    let fd = op.file.raw();
    // SAFETY: the range belongs to the record, alone and for the length of the call.
    let result = unsafe {
        match (op.direction, offset) {
            (Direction::Read, Some(offset)) => {
                libc::pread(fd, start.cast(), len, offset as libc::off_t)
            }
            (Direction::Read, None) => libc::read(fd, start.cast(), len),
            (Direction::Write, Some(offset)) => {
                libc::pwrite(fd, start.cast(), len, offset as libc::off_t)
            }
            (Direction::Write, None) if op.pollable => {
                libc::write(fd, start.cast(), len.min(PIPE_ROOM))
            }
            (Direction::Write, None) => libc::write(fd, start.cast(), len),
            (Direction::AwaitRead | Direction::AwaitWrite, _) => 0,
        }
    };
    if result < 0 {
        -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        result as i32
    }
}

/// Starts an operation, or its next request.
pub(crate) fn start(core: &Core, key: Key) {
    {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        match &core.io.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                match ring.make_room(1) {
                    Ok(()) => {
                        let entry = entry(op, &ring)
                            .user_data(Token { key, stage: STAGE_TRANSFER }.to_user_data());
                        // SAFETY: the range belongs to the record, which keeps it in place until the
                        // completion.
                        unsafe { ring.push(&entry) };
                        op.state = TransferState::InKernel;
                    }
                    Err(error) => op.end(Err(Error::io("submitting a transfer", error))),
                }
            }
            Backend::Readiness(_) if op.pollable => {
                drop(records);
                return wait_for_file(core, key);
            }
            Backend::Readiness(_) => while op.took(call(op)) {},
        }
    }
    core.due.attend();
    advance(core, key);
}

fn wait_for_file(core: &Core, key: Key) {
    let (file, events) = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        op.state = TransferState::InKernel;
        (Rc::clone(&op.file), op.direction.events())
    };
    core.await_readiness(&file, events, Token { key, stage: STAGE_READY });
}

/// The file that was waited for can be used, or failed: either way the next request tells.
pub(crate) fn ready(core: &Core, key: Key) {
    let again = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        if op.came_back() {
            let done = op.done;
            op.end(Err(Error::Canceled { done }));
        }
        let by_call = !core.io.has_ring();
        !op.holder.is_gone() && !op.is_over() && (!by_call || op.took(call(op)))
    };
    if again { start(core, key) } else { advance(core, key) }
}

/// A completion of the request under way.
pub(crate) fn completed(core: &Core, key: Key, result: i32) {
    let (again, wait) = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        let last = op.came_back();
        let again = op.took(result);
        if again && last {
            let done = op.done;
            op.end(Err(Error::Canceled { done }));
        }
        (again && !last && !op.holder.is_gone(), op.pollable && -result == libc::EAGAIN)
    };
    match (again, wait) {
        (true, true) => wait_for_file(core, key),
        (true, false) => start(core, key),
        (false, _) => advance(core, key),
    }
}

/// Hands buffer and result to the holder, once the operation is over.
pub(crate) fn take(core: &Core, key: Key) -> Option<(Loan, Result<usize>)> {
    let (loan, result, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        let result = op.tell()?;
        (op.loan.take().expect("a buffer is taken once"), result, op.holder.leave())
    };
    advance(core, key);
    Some((loan, result))
}

/// The holder goes. A write goes on with the request under way; a read is not wanted any more.
pub(crate) fn let_go(core: &Core, key: Key) {
    let (under_way, writes, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        (op.kernel_holds(), op.direction == Direction::Write, op.holder.leave())
    };
    if !under_way {
        return advance(core, key);
    }
    // Without a ring the operation may be over, and its record gone, when this returns.
    if core.io.has_ring() && !writes {
        let _ = core.cancel(Token { key, stage: STAGE_TRANSFER });
    }
    if core.cancel(Token { key, stage: STAGE_READY }) {
        ready(core, key);
    }
}

fn advance(core: &Core, key: Key) {
    let mut records = core.records.borrow_mut();
    let op = records.transfer(key);
    let mut waker = None;
    if op.is_over() {
        core.news.set(true);
        waker = op.holder.take_waker();
    }
    let over =
        (op.holder.is_gone() && !op.kernel_holds()).then(|| (op.loan.take(), Rc::clone(&op.file)));
    if over.is_some() {
        records.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(records);
    let (loan, _file) = over.unzip();
    match loan.flatten() {
        None => core.due.wake(waker),
        Some(loan) => core.due.let_go_and_wake(|later| loan.let_go(later), waker),
    }
}
