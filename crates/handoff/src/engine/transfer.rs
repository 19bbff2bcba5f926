//! Reads and writes of a file, and receives into a chosen buffer; by registered buffers where possible.
//!
//! Minimum kernel: as [`File`](crate::File) says. A receive into registered memory is `RECV` with a fixed
//! buffer where the kernel has that (7.2), else `READ_FIXED`, which takes a socket as well; into other memory
//! `RECV`. Without a ring it is `recv(2)`. The kernel copies once, into the buffer.
//!
//! Contracts:
//! - a write continues until all is written; a read at an offset continues until the buffer is full or the
//!   file ends; a read without an offset returns what there is; a receive returns what there is, or
//!   continues until the buffer is full;
//! - a receive starts when the dropped receive before it is over, and takes what follows its bytes;
//! - a pipe that is empty or full is waited for, and never blocks the thread: without a ring the engine
//!   polls it first; with a ring, only if its descriptor is non-blocking;
//! - the record owns the buffer until the last completion, also when nobody waits for it.

use std::io;

use handoff_sys::sqe;
use io_uring::{opcode, squeue};
use socket2::{SockAddr, SockRef};

#[cfg(feature = "tls")]
use super::tls;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::memory::AddressRange;
use crate::op::{
    Attached, Beside, Direction, Layout, Loan, SocketShared, TransferOp, TransferState,
};
use crate::ring::endpoint::with_target;
use crate::ring::token::Stage;
use crate::ring::{Backend, Key, Ring, Token};
use crate::unix::UnixAddress;

/// Bytes that a pipe which is ready for writing takes without blocking (`PIPE_BUF`).
const PIPE_ROOM: usize = 4096;

fn entry(op: &TransferOp, layout: &mut Layout, ring: &Ring) -> squeue::Entry {
    if let Some(loan) = op.left_in_pieces() {
        return vector(op, loan, layout, ring);
    }
    // The kernel takes an atomic write by its address only (`generic_atomic_write_valid`, 7.2).
    let registered = Some(ring.id).filter(|_| !op.flags.is_atomic());
    let (AddressRange { start, len, slot }, offset) = op.left(registered);
    // -1 means the file's own position.
    let offset = offset.unwrap_or(u64::MAX);
    let (len, flags) = (len as u32, op.flags.bits());
    if op.direction == Direction::ReceiveMessage {
        let message = layout.room_for_message(op);
        return with_target!(op.file, |fd| opcode::RecvMsg::new(fd, message)
            .flags(libc::MSG_CMSG_CLOEXEC as u32)
            .build());
    }
    with_target!(op.file, |fd| match (op.direction, slot) {
        (Direction::Read, Some(slot)) =>
            opcode::ReadFixed::new(fd, start, len, slot).offset(offset).rw_flags(flags).build(),
        (Direction::Read, None) =>
            opcode::Read::new(fd, start, len).offset(offset).rw_flags(flags).build(),
        (Direction::Write, Some(slot)) =>
            opcode::WriteFixed::new(fd, start, len, slot).offset(offset).rw_flags(flags).build(),
        (Direction::Write, None) =>
            opcode::Write::new(fd, start, len).offset(offset).rw_flags(flags).build(),
        (Direction::Receive | Direction::ReceiveAll, Some(slot)) if ring.receives_registered =>
            opcode::Recv::new(fd, start, len)
                .flags(receive_flags(op))
                .ioprio(sqe::RECVSEND_FIXED_BUF)
                .buf_group(slot)
                .build(),
        // A socket has no offset.
        (Direction::Receive | Direction::ReceiveAll, Some(slot)) =>
            opcode::ReadFixed::new(fd, start, len, slot).build(),
        (Direction::Receive | Direction::ReceiveAll, None) =>
            opcode::Recv::new(fd, start, len).flags(receive_flags(op)).build(),
        (Direction::Connect, _) => {
            let address = address(op);
            opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build()
        }
        (Direction::ReceiveMessage, _) => unreachable!("it has gone its way above"),
        (Direction::AwaitRead | Direction::AwaitWrite | Direction::AwaitEnd, _) =>
            opcode::PollAdd::new(fd, op.direction.events() as u32).build(),
    })
}

/// Several pieces at once. Past the page cache, the whole must be aligned to blocks, and each piece only to
/// what the device's DMA asks for.
///
/// The engine asks only direct files for registered vectors, since those surely take vectors. For a file that knows
/// only single buffers, the kernel would read or write the vector itself instead of its pieces.
fn vector(op: &TransferOp, loan: &Loan, layout: &mut Layout, ring: &Ring) -> squeue::Entry {
    let pieces = layout.vector(loan, op.done, op.file.blocks());
    let (start, len) = (pieces.as_ptr(), pieces.len() as u32);
    let offset = op.offset_left().unwrap_or(u64::MAX);
    let registered = ring.writes_vectors_registered && op.file.blocks().is_some();
    let slot = loan.common_slot(ring.id).filter(|_| registered);
    let flags = op.flags.bits();
    with_target!(op.file, |fd| match (op.direction, slot) {
        (Direction::Read, Some(slot)) =>
            opcode::ReadvFixed::new(fd, start, len, slot).offset(offset).rw_flags(flags).build(),
        (Direction::Read, None) =>
            opcode::Readv::new(fd, start, len).offset(offset).rw_flags(flags).build(),
        (_, Some(slot)) =>
            opcode::WritevFixed::new(fd, start, len, slot).offset(offset).rw_flags(flags).build(),
        (_, None) => opcode::Writev::new(fd, start, len).offset(offset).rw_flags(flags).build(),
    })
}

/// A stream's request continues by itself until it has all.
fn receive_flags(op: &TransferOp) -> i32 {
    if op.direction == Direction::ReceiveAll { libc::MSG_WAITALL } else { 0 }
}

/// Whether a call would not block now. Several may wait for one event, and the first may leave nothing for
/// the others.
fn is_ready(op: &TransferOp) -> bool {
    let mut asked = libc::pollfd { fd: op.file.raw(), events: op.direction.events(), revents: 0 };
    // SAFETY: the entry is one, and lives through the call, which waits for nothing.
    unsafe { libc::poll(&raw mut asked, 1, 0) != 0 }
}

fn call(op: &TransferOp, layout: &mut Layout) -> i32 {
    if op.pollable && !op.direction.is_told_by_calls() && !is_ready(op) {
        return -libc::EAGAIN;
    }
    // A pipe that is ready has some bytes, or little room.
    if let Some(loan) = op.left_in_pieces().filter(|_| !op.pollable) {
        return call_vector(op, layout.vector(loan, op.done, op.file.blocks()));
    }
    let (AddressRange { start, len, .. }, offset) = op.left(None);
    if !op.flags.is_empty() {
        return call_vector(op, &[libc::iovec { iov_base: start.cast(), iov_len: len }]);
    }
    let fd = op.file.raw();
    // SAFETY: the range, and the message and all that it names, belongs to the record, alone and for the length of the call.
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
            #[cfg(feature = "tls")]
            (Direction::Receive | Direction::ReceiveAll, _) if goes_by_calls(op) => {
                let socket = receives_from(op).expect("it was just looked at");
                return tls::receive(socket, start, len).expect("a TLS connection");
            }
            (Direction::Receive | Direction::ReceiveAll, _) => {
                libc::recv(fd, start.cast(), len, libc::MSG_DONTWAIT)
            }
            (Direction::ReceiveMessage, _) => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
                libc::recvmsg(fd, layout.room_for_message(op), flags)
            }
            (Direction::Connect, _) => return connect(op),
            (Direction::AwaitRead | Direction::AwaitWrite | Direction::AwaitEnd, _) => 0,
        }
    };
    meant(op, outcome(result))
}

/// What a result means, by who ciphers.
fn meant(op: &TransferOp, result: i32) -> i32 {
    #[cfg(feature = "tls")]
    if let Some(socket) = receives_from(op) {
        return tls::received(socket, result);
    }
    let _ = op;
    result
}

/// Whether the peer has ended its direction, as far as we know already.
fn is_at_its_end(op: &TransferOp) -> bool {
    receives_from(op).is_some_and(SocketShared::is_at_its_end)
}

/// Whether it is made by calls, although there is a ring.
fn goes_by_calls(op: &TransferOp) -> bool {
    op.flags.polls() || receives_from(op).is_some_and(SocketShared::is_deciphered_here)
}

fn has_deciphered(op: &TransferOp) -> bool {
    matches!(&op.file, Attached::Socket(socket) if socket.has_deciphered())
}

fn receives_from(op: &TransferOp) -> Option<&SocketShared> {
    match &op.file {
        Attached::Socket(socket) if op.direction.receives() => Some(socket),
        _ => None,
    }
}

fn call_vector(op: &TransferOp, pieces: &[libc::iovec]) -> i32 {
    let (fd, start, len) = (op.file.raw(), pieces.as_ptr(), pieces.len() as i32);
    // -1 means the file's own position.
    let offset = op.offset_left().map_or(-1, |offset| offset as libc::off_t);
    // SAFETY: the pieces belong to the record, alone and for the length of the call.
    outcome(unsafe {
        match op.direction {
            Direction::Read => libc::preadv2(fd, start, len, offset, op.flags.bits()),
            _ => libc::pwritev2(fd, start, len, offset, op.flags.bits()),
        }
    })
}

/// The result of a call, in the form of a completion.
fn outcome(result: isize) -> i32 {
    if result < 0 {
        -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        result as i32
    }
}

fn address(op: &TransferOp) -> &SockAddr {
    op.address.as_ref().expect("who connects has somebody to connect to")
}

/// Begins to connect, or reports the result. A blocking socket is non-blocking during the call.
fn connect(op: &TransferOp) -> i32 {
    let socket = SockRef::from(&op.file.fd);
    let outcome = socket.nonblocking().and_then(|nonblocking| {
        socket.set_nonblocking(true)?;
        let outcome = socket.connect(address(op));
        socket.set_nonblocking(nonblocking)?;
        outcome
    });
    outcome.err().map_or(0, |error| -error.raw_os_error().unwrap_or(libc::EIO))
}

/// Starts an operation; a receive waits until the dropped receive before it is over.
pub(crate) fn begin(core: &Core, key: Key) {
    let at_once = match core.records.borrow_mut().transfer(key) {
        TransferOp { file: Attached::Socket(socket), direction, .. } if direction.receives() => {
            socket.reception.enter(key)
        }
        _ => true,
    };
    if at_once {
        start_or_mark(core, key);
    }
}

/// A receive by the ring starts with the next submission: a receive dropped before takes nothing.
fn start_or_mark(core: &Core, key: Key) {
    let receives = core.records.borrow_mut().transfer(key).direction.receives();
    match receives && core.io.has_ring() {
        true => core.pending.mark_receive(key),
        false => start(core, key),
    }
}

/// Starts a marked receive, unless it has ended since.
pub(crate) fn start_marked(core: &Core, key: Key) {
    let idle = {
        let mut records = core.records.borrow_mut();
        matches!(records.transfer(key).state, TransferState::Idle)
    };
    if idle {
        start(core, key);
    }
}

/// Why nothing can be received any more.
fn check_reception(core: &Core, op: &TransferOp) -> Result<()> {
    if core.pending.is_gone() {
        return Err(Error::DriverGone);
    }
    match &op.file {
        Attached::Socket(socket) if op.direction.receives() => socket.reception.check_whole(),
        _ => Ok(()),
    }
}

/// Starts an operation's next request.
fn start(core: &Core, key: Key) {
    {
        let mut records = core.records.borrow_mut();
        let (op, layout) = records.transfer_and_layout(key);
        let ended = match check_reception(core, op) {
            // The kernel would wait for a byte.
            Ok(()) if op.direction == Direction::ReceiveAll && op.total == 0 => Some(Ok(0)),
            // Here, and not in the socket any more.
            Ok(()) if op.direction == Direction::AwaitRead && has_deciphered(op) => Some(Ok(0)),
            checked => checked.err().map(Err),
        };
        if ended.is_none() && is_at_its_end(op) && !op.took(0) {
            drop(records);
            return advance(core, key);
        }
        if let Some(ended) = ended {
            op.end(ended);
            drop(records);
            return advance(core, key);
        }
        match &core.io.backend {
            Backend::Ring(ring) if !goes_by_calls(op) => {
                let mut ring = ring.borrow_mut();
                match ring.make_room(1) {
                    Ok(()) => {
                        let entry = entry(op, layout, &ring)
                            .user_data(Token { key, stage: Stage::Transfer }.to_user_data());
                        // SAFETY: range, pieces and address belong to the record, which keeps them in place until
                        // the completion.
                        unsafe { ring.push(&entry) };
                        op.state = TransferState::InKernel;
                    }
                    Err(error) => op.end(Err(Error::io("submitting a transfer", error))),
                }
            }
            _ => {
                if op.pollable
                    && (!op.direction.is_told_by_calls() || call_until_blocked(op, layout))
                {
                    drop(records);
                    return wait_for_file(core, key);
                }
                while !op.is_over() && called(op, layout).0 {}
            }
        }
    }
    core.wakes().attend();
    advance(core, key);
}

/// Calls, and takes the outcome: whether another call is needed, and the result.
fn called(op: &mut TransferOp, layout: &mut Layout) -> (bool, i32) {
    let result = call(op, layout);
    (took(op, layout, result), result)
}

/// Takes the outcome of a request, with what came beside the bytes of a message; returns whether another is needed.
fn took(op: &mut TransferOp, layout: &Layout, result: i32) -> bool {
    let came = (op.direction == Direction::ReceiveMessage && result >= 0)
        .then(|| layout.arrived_beside(op.most_descriptors));
    let again = op.took(result);
    if let Some(beside) = came {
        if beside.is_cut {
            op.end(Err(Error::DescriptorsCut { received: op.done }));
        }
        op.beside = beside;
    }
    again
}

/// Continues as long as nothing has to be waited for; returns whether it waits now.
fn call_until_blocked(op: &mut TransferOp, layout: &mut Layout) -> bool {
    loop {
        match called(op, layout) {
            (true, result) if op.is_blocked(result) => return true,
            (true, _) => {}
            (false, _) => return false,
        }
    }
}

fn wait_for_file(core: &Core, key: Key) {
    let (file, direction) = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        (op.state, op.waits) = (TransferState::InKernel, true);
        (op.file.clone(), op.direction)
    };
    let token = Token { key, stage: Stage::Ready };
    match &file {
        // It does not tell when the listener has room again.
        Attached::Socket(socket) if socket.unix && direction == Direction::Connect => {
            core.tell_later(token);
        }
        // A poll of the ring would tell of a peer that has ended its direction, again and again.
        _ if core.io.has_ring() && direction == Direction::AwaitWrite => core.tell_later(token),
        _ => core.await_readiness(&file, direction.events(), token),
    }
}

/// The file is ready, or failed: the next request tells which.
pub(crate) fn ready(core: &Core, key: Key) {
    let again = {
        let mut records = core.records.borrow_mut();
        let (op, layout) = records.transfer_and_layout(key);
        if op.came_back() {
            let done = op.done;
            op.end(Err(Error::Canceled { done }));
        }
        let by_call = !core.io.has_ring() && !op.direction.is_told_by_calls();
        !op.holder.is_gone() && !op.is_over() && (!by_call || called(op, layout).0)
    };
    if again { start(core, key) } else { advance(core, key) }
}

/// Whether a wait for room was told of something else: the ring's polls also tell that the peer has ended its direction
/// (`IO_POLL_UNMASK`).
fn is_beside(op: &TransferOp, events: i32) -> bool {
    let asked = libc::POLLOUT | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
    op.direction == Direction::AwaitWrite && events > 0 && events & i32::from(asked) == 0
}

/// A completion of the request under way.
pub(crate) fn completed(core: &Core, key: Key, result: i32) {
    let (again, wait) = {
        let mut records = core.records.borrow_mut();
        let (op, layout) = records.transfer_and_layout(key);
        let last = op.came_back();
        let result = meant(op, result);
        let beside = is_beside(op, result);
        let again = beside || took(op, layout, result);
        if again && last {
            let done = op.done;
            op.end(Err(Error::Canceled { done }));
        }
        (again && !last && !op.holder.is_gone(), beside || op.pollable && op.is_blocked(result))
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
        let mut loan = op.loan.take().expect("a buffer is taken once");
        loan.set_filled(op.done);
        (loan, result, op.holder.leave())
    };
    advance(core, key);
    Some((loan, result))
}

/// As [`take`], with what came beside the bytes of a message.
pub(crate) fn take_message(
    core: &Core,
    key: Key,
) -> Option<(Loan, Result<usize>, Beside, Option<UnixAddress>)> {
    let (beside, sender) = {
        let mut records = core.records.borrow_mut();
        let (op, layout) = records.transfer_and_layout(key);
        if !op.is_over() {
            return None;
        }
        let beside = std::mem::take(&mut op.beside);
        let sender = beside.has_sender.then(|| layout.sender());
        (beside, sender.flatten())
    };
    let (loan, result) = take(core, key)?;
    Some((loan, result, beside, sender))
}

/// The holder goes. A write continues with the request under way; a read is cancelled.
pub(crate) fn let_go(core: &Core, key: Key) {
    let (under_way, writes, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        let under_way = op.kernel_holds();
        if under_way {
            op.start_leaving();
        }
        (under_way, op.direction == Direction::Write, op.holder.leave())
    };
    if !under_way {
        return advance(core, key);
    }
    stop(core, key, !writes);
}

/// Asks for an operation to end with what it has done so far.
pub(crate) fn cancel(core: &Core, key: Key) {
    let under_way = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        if op.is_over() {
            return;
        }
        op.make_last();
        let under_way = op.kernel_holds();
        if !under_way {
            let done = op.done;
            op.end(Err(Error::Canceled { done }));
        }
        under_way
    };
    match under_way {
        true => stop(core, key, true),
        false => advance(core, key),
    }
}

/// Asks the kernel to end its part of an operation: a wait, and a request if the caller wants that.
fn stop(core: &Core, key: Key, request: bool) {
    let stage = match core.records.borrow_mut().transfer(key).waits {
        true => Stage::Ready,
        false if request => Stage::Transfer,
        false => return,
    };
    // Without a ring the operation may be over, and its record gone, when this returns.
    if core.cancel(Token { key, stage }) {
        ready(core, key);
    }
}

/// The kernel did not find the request of an operation that was asked to end, or the question was `lost` on its way.
pub(crate) fn cancel_again(core: &Core, key: Key, lost: bool) {
    let again = {
        let mut records = core.records.borrow_mut();
        let op = records.transfer(key);
        op.kernel_holds() && (lost || op.is_tried_again())
    };
    if again {
        stop(core, key, true);
    }
}

fn advance(core: &Core, key: Key) {
    let mut records = core.records.borrow_mut();
    let op = records.transfer(key);
    let mut waker = None;
    let (mut next, mut behind) = (None, Vec::new());
    if op.is_over() {
        core.news.set(true);
        waker = op.holder.take_waker();
    }
    let is_gone = op.holder.is_gone() && !op.kernel_holds();
    if is_gone || op.is_over() {
        (next, behind) = op.leave_socket(key);
    }
    let over = is_gone.then(|| (op.loan.take(), op.file.clone()));
    if over.is_some() {
        records.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(records);
    let (loan, _file) = over.unzip();
    if let Some(next) = next {
        start_or_mark(core, next);
    }
    if !behind.is_empty() {
        core.wakes().wake_many(behind);
    }
    match loan.flatten() {
        None => core.wakes().wake(waker),
        Some(loan) => core.wakes().let_go_and_wake(|later| loan.let_go(later), waker),
    }
}
