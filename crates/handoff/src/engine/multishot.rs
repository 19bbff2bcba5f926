//! Receive into the chunks of a pool: multishot receive with provided buffers, or `recv` where there is
//! no ring; by messages, where the pool keeps the senders of datagrams.
//!
//! Minimum kernel: 6.0 with a ring, any without. The kernel copies. On a TLS connection that the kernel ciphers, it
//! deciphers into the chunks instead; where this process does, receives are calls, also with a ring.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use io_uring::{cqueue, opcode, squeue};

#[cfg(feature = "tls")]
use super::tls;
use crate::error::Error;
use crate::lease::pool::PoolShared;
use crate::lease::{DATAGRAM_HEAD, Span, datagram};
use crate::mechanism::ReceiveEngine;
use crate::op::{Flow, ReceiveOp, ReceiveState, ReceivesFrom, SocketShared};
use crate::ring::endpoint::with_target;
use crate::ring::{Completion, Key};

fn pool(op: &ReceiveOp) -> Rc<PoolShared> {
    Rc::clone(op.pool.as_ref().expect("what receives into a pool has one"))
}

pub(super) fn request(op: &ReceiveOp) -> squeue::Entry {
    let group = pool(op).group().expect("a pool of a ring has a group");
    if op.with_senders {
        let message = datagram::MESSAGE.as_ptr();
        // With this flag the kernel tells the length of a datagram that has no room.
        let flags = libc::MSG_TRUNC as u32;
        with_target!(op.socket.endpoint, |fd| opcode::RecvMsgMulti::new(fd, message, group)
            .flags(flags)
            .build())
    } else {
        with_target!(op.socket.endpoint, |fd| opcode::RecvMulti::new(fd, group).build())
    }
}

/// Makes a span of what a receive put into a chunk.
fn span(op: &ReceiveOp, pool: &Rc<PoolShared>, chunk: u16, len: usize) -> Span {
    // One that failed has no head.
    if op.with_senders && len >= DATAGRAM_HEAD {
        pool.filled_datagram(chunk, len)
    } else {
        pool.filled(chunk, len)
    }
}

/// Takes a completion; returns whether the receive must start again, if it ended.
pub(super) fn completed(key: Key, op: &mut ReceiveOp, completion: &Completion) -> bool {
    let Completion { result, flags, .. } = *completion;
    let result = meant(op, result);
    let pool = pool(op);
    if let Some(chunk) = cqueue::buffer_select(flags) {
        // One that failed has filled nothing, and its chunk goes back.
        let span = span(op, &pool, chunk, result.max(0) as usize);
        if result > 0 || (result == 0 && !op.socket.has_end()) {
            op.count(span.len(), pool.chunk());
            op.arrivals.push(span);
        }
    } else if result == 0 && !op.socket.has_end() {
        op.arrivals.push(Span::nothing());
    }
    let mut again = false;
    match result {
        0 if op.socket.has_end() => op.end(Ok(())),
        0.. => {}
        _ if -result == libc::ENOBUFS => {
            // A chunk may have come back since the kernel looked.
            again = pool.has_free();
            if !again && !op.holder.is_gone() {
                pool.starve(key);
            }
        }
        _ if matches!(-result, libc::EINTR | libc::EAGAIN) => {
            again = true;
        }
        _ if -result == libc::EFAULT && op.flow.as_mut().is_some_and(Flow::come_back) => {
            op.from = ReceivesFrom::Queue;
            again = true;
        }
        _ if -result == libc::EFAULT => op.end(Err(unreadable())),
        _ => op.end(Err(op.socket.error("receiving", -result))),
    }
    if !cqueue::more(flags) {
        op.state = match result {
            0.. if op.arrivals.len() >= pool.chunks() => ReceiveState::Paused,
            _ if -result == libc::EAGAIN => ReceiveState::Blocked,
            _ => ReceiveState::Idle,
        };
        again |= result >= 0 && op.state != ReceiveState::Paused;
    }
    again
}

/// Without a ring: the socket is readable. Returns whether to wait for more.
pub(super) fn ready(key: Key, op: &mut ReceiveOp) -> bool {
    !matches!(read(key, op, &pool(op), 0), Read::Starves)
}

/// Takes by calls all that can be deciphered now: some of it may have left the socket's queue long ago, so that no wait
/// tells of it. Returns whether to wait for more.
pub(super) fn decipher(key: Key, op: &mut ReceiveOp) -> bool {
    let pool = pool(op);
    loop {
        match read(key, op, &pool, 0) {
            Read::Some => {}
            Read::Nothing => return !op.has_ended(),
            Read::Starves => return false,
        }
    }
}

/// What a result means, by who ciphers.
fn meant(op: &ReceiveOp, result: i32) -> i32 {
    #[cfg(feature = "tls")]
    return tls::received(&op.socket, result);
    #[cfg(not(feature = "tls"))]
    {
        let _ = op;
        result
    }
}

/// Receives by a call into memory that can be written, and has `len` bytes: the number, or a negative errno.
///
/// # Safety
///
/// The memory is the caller's alone.
unsafe fn receive(socket: &SocketShared, start: NonNull<u8>, len: usize) -> i32 {
    #[cfg(feature = "tls")]
    // SAFETY: as the caller says.
    if let Some(received) = unsafe { tls::receive(socket, start.as_ptr(), len) } {
        return received;
    }
    let fd = socket.endpoint.raw();
    // SAFETY: as the caller says.
    outcome(unsafe { libc::recv(fd, start.as_ptr().cast(), len, libc::MSG_DONTWAIT) })
}

/// The result of a call, in the form of a completion.
fn outcome(result: isize) -> i32 {
    match i32::try_from(result) {
        Ok(result) if result >= 0 => result,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Result of a read.
pub(super) enum Read {
    Some,
    /// There is nothing, or nothing more.
    Nothing,
    /// There was no chunk.
    Starves,
}

/// Reads into a chunk now; at most this many bytes, unless it is 0.
pub(super) fn read(key: Key, op: &mut ReceiveOp, pool: &Rc<PoolShared>, most: usize) -> Read {
    let Some((chunk, start, len)) = pool.take_chunk() else {
        pool.starve(key);
        return Read::Starves;
    };
    let len = if most == 0 { len } else { len.min(most) };
    let read = if op.with_senders {
        // SAFETY: the chunk is ours until it is filled or put back, and was seen to have more than a head.
        outcome(unsafe { receive_message(op.socket.endpoint.raw(), start, len) })
    } else {
        // SAFETY: the chunk is ours until it is filled or put back.
        unsafe { receive(&op.socket, start, len) }
    };
    if read > 0 || (read == 0 && !op.socket.has_end()) {
        let span = span(op, pool, chunk, read as usize);
        op.count(span.len(), len);
        op.arrivals.push(span);
        return Read::Some;
    }
    pool.untake_chunk(chunk);
    match -read {
        0 => op.end(Ok(())),
        libc::EAGAIN | libc::EINTR => {}
        errno => op.end(Err(op.socket.error("receiving", errno))),
    }
    Read::Nothing
}

/// Receives a datagram as a ring would: its head, and the payload behind that. Returns the bytes of both, or -1 as
/// `recvmsg`.
///
/// # Safety
///
/// The chunk can be written, has `len` bytes, and more than a head.
unsafe fn receive_message(fd: RawFd, chunk: NonNull<u8>, len: usize) -> isize {
    let room = len - DATAGRAM_HEAD;
    // SAFETY: all-zero bytes are a valid, empty message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // SAFETY: the chunk is longer than that.
    let (address, payload) = unsafe { (chunk.add(datagram::ADDRESS), chunk.add(DATAGRAM_HEAD)) };
    let mut payload = libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: room };
    message.msg_name = address.as_ptr().cast();
    message.msg_namelen = (DATAGRAM_HEAD - datagram::ADDRESS) as libc::socklen_t;
    message.msg_iov = &raw mut payload;
    message.msg_iovlen = 1;
    // SAFETY: the header names parts of the chunk, which the caller may write.
    let whole = unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
    let Ok(bytes) = usize::try_from(whole) else { return whole };
    let head = datagram::head(message.msg_namelen, bytes as u32, message.msg_flags as u32);
    // SAFETY: the head is before the address.
    unsafe { chunk.cast().write_unaligned(head) };
    (DATAGRAM_HEAD + bytes.min(room)) as isize
}

/// Our own memory is always writable.
fn unreadable() -> Error {
    Error::EngineUnavailable {
        engine: ReceiveEngine::Multishot.name(),
        reason: "the connection's bytes are in the memory of an rx queue that is bound to a ring: \
                 receive from that queue"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use handoff_sys::ring_setup::CQE_F_BUFFER;

    use super::*;
    use crate::core::Core;
    use crate::lease::{Intake, Pool};
    use crate::memory::{Backed, Region};
    use crate::op::chooser::Chooser;
    use crate::op::{Op, SocketShared};
    use crate::ring::{Epoll, Io};

    /// Stands in for a kernel that names a chunk with an error.
    #[test]
    fn a_receive_that_failed_is_no_datagram() {
        for with_senders in [false, true] {
            let io = Io::of_epoll(Epoll::new().unwrap(), String::new());
            let core = Core::new(io, 16).unwrap();
            let (near, _far) = UnixDatagram::pair().unwrap();
            let chooser = Chooser::new(Err(String::new()), true);
            let socket = Rc::new(SocketShared::new(&core.io, near.into(), chooser).unwrap());
            let backing = Region::anonymous(4096).unwrap().backing().clone();
            let shared = Rc::new(PoolShared::of_list(&core.io, &core.pending, backing, 1024, 4));
            let pool = Pool { shared: Rc::clone(&shared) };
            let intake = Intake { with_senders, ..Intake::from(&pool) };
            let op = Op::Receive(ReceiveOp::new(socket, intake));
            let key = core.records.borrow_mut().insert(|| op);
            let (chunk, ..) = shared.take_chunk().unwrap();

            let flags = CQE_F_BUFFER | u32::from(chunk) << 16;
            let completion = Completion { data: 0, result: -libc::EIO, flags, spans: 0..0 };
            let mut records = core.records.borrow_mut();
            let op = records.receive(key);
            assert!(!completed(key, op, &completion));
            assert!(op.has_ended() && op.arrivals.is_empty());
            assert_eq!(shared.held(), 0);
        }
    }
}
