//! Zero-copy send through the ring: `IORING_OP_SEND_ZC` and `IORING_OP_SENDMSG_ZC`.
//!
//! Minimum kernel: 6.0 (`SEND_ZC`), 6.1 (`SENDMSG_ZC`, registered buffers), 6.2 (usage report), 6.15
//! (registered buffers in a vectored message), 6.7 (to know registered huge pages, which streams pin for
//! each send instead). Capability: none; unregistered pages count against `RLIMIT_MEMLOCK` while they are
//! on loan. The device must do scatter-gather and checksums, else
//! the kernel copies and reports so.
//!
//! Return signal: a second completion, the notification, which comes if and only if the first one carries
//! `IORING_CQE_F_MORE`. Exception: for a request in a chain that was stopped before it began, the kernel
//! posts an unannounced notification, which is ignored. A notification's result says whether the kernel
//! copied after all.

use std::ptr;

use handoff_sys::{pagemap, sqe};
use io_uring::{cqueue, opcode, squeue};

use super::sending;
use crate::core::Core;
use crate::mechanism::Engine;
use crate::memory::{AddressRange, Backing, Piece};
use crate::op::layout::MAX_PIECES;
use crate::op::{InChain, Layout, SendOp, SendState};
use crate::ring::endpoint::with_target;
use crate::ring::token::Stage;
use crate::ring::{Completion, Key, MAX_REQUEST, Ring, Token};

/// Requests that a send needs now.
pub(crate) fn requests(op: &SendOp) -> usize {
    1 + usize::from(op.header_goes_apart())
}

/// Whether those requests carry all that is left of a send, so that the next send may be linked.
pub(crate) fn carries_all(op: &SendOp) -> bool {
    let pieces = op.lent.loan.as_ref().map_or(0, |loan| loan.pieces().len());
    pieces <= MAX_PIECES && op.total - op.done <= MAX_REQUEST
}

/// Queues what is left of a send. With `linked`, the request queued next starts only after it.
///
/// The caller makes sure that there is room for [`requests`] of them, so that a submission never cuts a
/// link.
#[inline(always)]
pub(crate) fn queue(
    ring: &mut Ring,
    key: Key,
    op: &mut SendOp,
    layout: &mut Layout,
    in_chain: InChain,
    linked: bool,
    turn: u32,
) {
    op.turn = turn;
    op.in_chain = in_chain;
    // Where one went through, the next is tried at once.
    let waits = op.socket().crowded.get() && in_chain != InChain::Behind;
    let mut poll_first = if waits { sqe::RECVSEND_POLL_FIRST } else { 0 };
    if op.header_goes_apart() {
        let mut entry = header(op, layout).flags(squeue::Flags::IO_LINK);
        sqe::add_send_flags(&mut entry, std::mem::take(&mut poll_first));
        entry.set_user_data(Token { key, stage: Stage::Header }.to_user_data());
        // SAFETY: the header lies in the record, which stays until the completion.
        unsafe { ring.push(&entry) };
        op.in_kernel += 1;
    }
    let bare = op.socket().stream || op.header_len() == 0;
    let mut entry = match op.payload_left(ring.id) {
        Some(range) if bare && op.segment == 0 => one_range(op, layout, range),
        Some(range) if bare => datagrams(ring, op, layout, range),
        _ => message(ring, op, layout, bare),
    };
    sqe::add_send_flags(&mut entry, poll_first);
    entry.set_user_data(Token { key, stage: op.lent.next_attempt() }.to_user_data());
    let entry = if linked { entry.flags(squeue::Flags::IO_LINK) } else { entry };
    // SAFETY: message, address and pieces belong to the record, which keeps them at their addresses
    // until the last completion.
    unsafe { ring.push(&entry) };
    op.in_kernel += 1;
}

/// What is left of the header of a send on a stream.
fn header(op: &SendOp, layout: &Layout) -> squeue::Entry {
    let header = layout.header_left(op);
    // TCP holds a header back if told that more comes; an empty payload would not push it out.
    let more = if op.total > op.header_len() { libc::MSG_MORE } else { 0 };
    with_target!(op.socket().endpoint, |fd| {
        opcode::Send::new(fd, header.as_ptr(), header.len() as u32)
            .flags(op.socket().message_flags() | more)
            .build()
    })
}

/// What is left of a payload that is one range.
#[inline(always)]
fn one_range(op: &mut SendOp, layout: &Layout, range: AddressRange) -> squeue::Entry {
    let slot = unless_overcharged(op, range.slot);
    let mut entry = match op.engine {
        // Bytes in the kernel can be copied only by a request.
        Engine::Copy => with_target!(op.socket().endpoint, |fd| {
            opcode::Send::new(fd, ptr::null(), 0).flags(op.socket().message_flags()).build()
        }),
        _ => op.socket().lending.clone(),
    };
    sqe::set_memory(&mut entry, range.start, range.len.min(MAX_REQUEST) as u32);
    if let Some(slot) = slot {
        sqe::set_fixed_buffer(&mut entry, slot);
    }
    if let Some(address) = layout.address(op) {
        sqe::set_destination(&mut entry, address.as_ptr().cast(), address.len() as u16);
    }
    op.slot = slot;
    entry
}

/// What is left of a payload of several pieces, or behind a header in one datagram.
fn message(ring: &Ring, op: &mut SendOp, layout: &mut Layout, bare: bool) -> squeue::Entry {
    let slot = common_slot(ring, op).filter(|_| bare);
    let slot = unless_overcharged(op, slot);
    op.header_lent = !bare;
    let message = layout.message(op, !bare);
    message_of(ring, op, message, slot)
}

/// What is left of a payload of one range that goes as several datagrams.
#[inline(always)]
fn datagrams(
    ring: &Ring,
    op: &mut SendOp,
    layout: &mut Layout,
    range: AddressRange,
) -> squeue::Entry {
    // The kernel takes no empty range of a slot.
    let slot = range.slot.filter(|_| ring.vectored_registered && range.len > 0);
    let message = layout.datagrams(op, &range);
    message_of(ring, op, message, slot)
}

#[inline(always)]
fn message_of(
    ring: &Ring,
    op: &mut SendOp,
    message: *const libc::msghdr,
    slot: Option<u16>,
) -> squeue::Entry {
    op.slot = slot;
    let usage = if ring.reports_usage { sqe::SEND_ZC_REPORT_USAGE } else { 0 };
    let mut entry = with_target!(op.socket().endpoint, |fd| {
        opcode::SendMsgZc::new(fd, message)
            .ioprio(usage)
            .flags(op.socket().message_flags() as u32)
            .build()
    });
    if let Some(slot) = slot {
        sqe::set_fixed_buffer(&mut entry, slot);
    }
    entry
}

/// The slot, except for a stream that would be charged much more than it gets.
///
/// The kernel keeps a huge page in a slot as one range, and charges each packet with all of that range
/// up to the packet's last byte (`io_sg_from_iter()`): 2 MiB for 64 KiB, at worst. Then the send buffer
/// is full after one packet, and the next waits for its acknowledgement. Pages that are pinned for the
/// send are charged as they are.
#[inline(always)]
fn unless_overcharged(op: &mut SendOp, slot: Option<u16>) -> Option<u16> {
    op.kept_from_slot = op.socket().stream && slot.is_some() && would_be_overcharged(op);
    slot.filter(|_| !op.kept_from_slot)
}

fn would_be_overcharged(op: &SendOp) -> bool {
    let pieces = op.lent.loan.as_ref().map_or(&[][..], |loan| loan.pieces());
    let is_huge = |piece: &Piece| piece.memory().is_some_and(|memory| is_huge(memory));
    !op.socket().keeps_to_slots.get() && pieces.iter().any(is_huge)
}

/// Whether memory has huge pages, which the kernel charges whole when it pins a part.
pub(super) fn is_huge(backing: &Backing) -> bool {
    backing.is_huge(|backing| {
        let huge = pagemap::has_huge_pages(backing.start(), backing.len());
        huge.inspect_err(|error| tracing::debug!(%error, "taken for base pages")).unwrap_or(false)
    })
}

/// The slot that all pieces of a message lie in, where the kernel takes one for a message.
fn common_slot(ring: &Ring, op: &SendOp) -> Option<u16> {
    if !ring.vectored_registered || op.total == 0 {
        return None;
    }
    op.lent.loan.as_ref()?.common_slot(ring.id)
}

/// What a completion means for its send.
pub(super) enum Next {
    Nothing,
    /// It has reached a stage that somebody waits for, or is over.
    SettleUp,
    /// The socket has no room.
    WaitForRoom,
    /// The kernel has nothing of it but lent pages, and others still have to be told.
    Progressed,
}

/// Tells a send of a completion: of this attempt, or of its header.
#[inline(always)]
pub(super) fn tell(
    core: &Core,
    op: &mut SendOp,
    attempt: Option<u8>,
    completion: &Completion,
) -> Next {
    let Completion { result, flags, .. } = *completion;
    let next = |op: &mut SendOp| match sending::note_progress(core, op) {
        true => Next::SettleUp,
        false => Next::Nothing,
    };
    if cqueue::notif(flags) {
        let copied = result as u32 & sqe::NOTIF_USAGE_ZC_COPIED != 0;
        let copied = core.io.reports_usage.then_some(copied);
        if let Some(number) = attempt {
            op.lent.attempt_returned(number, copied);
        }
        return next(op);
    }
    op.in_kernel -= 1;
    if op.in_chain != InChain::Alone {
        core.in_chains.update(|requests| requests - 1);
    }
    let taken = result.max(0) as usize;
    op.done += taken;
    if attempt.is_none() {
        op.lent.account(taken as u64, Some(true));
    } else {
        op.lent.attempted(cqueue::more(flags).then_some(taken));
        if !cqueue::more(flags) {
            lent_nothing(op, taken);
        }
        if op.socket().stream && op.in_chain != InChain::Behind {
            // When a thread of the kernel takes requests, the turn says nothing about the socket.
            let waited = core.turns() != op.turn && !core.io.is_polled;
            op.socket().crowded.set(waited && result >= 0);
        }
    }
    if result < 0 {
        failed(core, op, -result);
    }
    if op.in_kernel > 0 {
        return Next::Nothing;
    }
    if op.settle_or_wait() {
        return Next::WaitForRoom;
    }
    // A settled datagram blocks nobody.
    if !op.keeps_order() && op.is_settled() { next(op) } else { Next::Progressed }
}

/// Without a notification to come, nothing was lent: the bytes were copied.
#[cold]
fn lent_nothing(op: &mut SendOp, taken: usize) {
    if op.engine == Engine::Copy && taken > 0 {
        op.copy_went_through();
    }
    op.lent.account(taken as u64, Some(true));
}

/// What a failing request means for its send: an end, another try, or another engine.
fn failed(core: &Core, op: &mut SendOp, errno: i32) {
    match errno {
        // The payload behind a failed header.
        _ if op.is_failing() => {}
        // The request of an empty payload, behind a header that was the whole send.
        _ if op.done > 0 && op.done == op.total => {}
        // An earlier link of the chain stopped: this request never started and is submitted again.
        libc::ECANCELED if !op.is_ending() => {}
        // This kernel does not wait for room on a non-blocking socket.
        libc::EAGAIN if !op.is_ending() => op.state = SendState::Blocked,
        libc::EAGAIN | libc::EINTR => {}
        libc::EFAULT if op.lost_its_slot(core.io.ring_id()) => {}
        // Its pages are pinned already, in the slot.
        libc::ENOMEM | libc::ENOBUFS if op.kept_from_slot => op.socket().keeps_to_slots.set(true),
        _ if op.may_copy_instead(errno) => op.copy_instead(errno),
        _ => op.fail_with_last(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use super::*;
    use crate::engine::order;
    use crate::memory::Buffer;
    use crate::op::SocketShared;
    use crate::op::chooser::Chooser;
    use crate::op::loan::AsLoan as _;
    use crate::ring::{Epoll, Io};

    /// A header that fails takes the payload along, which the kernel may tell of in a later turn.
    #[test]
    fn a_send_whose_requests_end_apart_is_told_with_the_last() {
        for taken in [0, 2] {
            let core = Core::new(Io::of_epoll(Epoll::new().unwrap(), String::new()), 16).unwrap();
            let (near, _far) = UnixStream::pair().unwrap();
            let chooser = Chooser::new(Err(String::new()), true);
            let socket = Rc::new(SocketShared::new(&core.io, near.into(), chooser).unwrap());
            let key = {
                let mut records = core.records.borrow_mut();
                let new = || SendOp::new(Rc::clone(&socket), Engine::UringZc, 10, 4);
                let (key, op, _) = records.insert_send(new);
                op.lent.lend(Buffer::from(vec![0; 6]).into_loan());
                key
            };
            socket.queue.borrow_mut().waiting.push_back(key);
            let submit = || {
                let mut records = core.records.borrow_mut();
                let op = records.send(key);
                (op.in_kernel, op.in_chain) = (2, InChain::First);
                core.in_chains.set(2);
                socket.queue.borrow_mut().started = 1;
                op.lent.next_attempt()
            };
            let tell = |stage, result| {
                let data = Token { key, stage }.to_user_data();
                order::completed(&core, &[Completion { data, result, flags: 0, spans: 0..0 }]);
            };
            if taken > 0 {
                let payload = submit();
                tell(Stage::Header, taken);
                tell(payload, -libc::ECANCELED);
            }
            let payload = submit();
            tell(Stage::Header, -libc::ECONNRESET);
            assert!(sending::take_sent(&core, key).is_none(), "the kernel has the payload");
            tell(payload, -libc::ECANCELED);
            let error = sending::take_sent(&core, key).unwrap().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
            let queue = socket.queue.borrow();
            assert_eq!((queue.started, queue.waiting.len()), (0, 0));
            assert_eq!(queue.broken, (taken > 0).then_some((taken as usize, 10)));
        }
    }
}
