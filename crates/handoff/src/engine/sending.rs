//! A send: what it is, how far it got, and what it still waits for.
//!
//! Contracts:
//! - "sent" (the kernel took all bytes, or failed) and "returned" (the kernel let go of all of them)
//!   are told apart, in that order;
//! - the record owns the buffer from the moment the send is accepted until it is returned;
//! - a partial send goes on with the rest of the same buffer;
//! - each return signal is matched with the bytes of the attempt that it belongs to.

use std::mem::MaybeUninit;
use std::rc::Rc;
use std::task::Waker;

use smallvec::SmallVec;
use socket2::SockAddr;

use super::Engine;
use crate::driver::Inner;
use crate::error::{Error, Result};
use crate::inflight::{Key, STAGE_ATTEMPTS};
use crate::lease::Loan;
use crate::outcome::Tally;
use crate::sink::group::GroupKey;
use crate::socket::SocketShared;

/// The longest header that goes before a lent payload, in bytes.
pub const MAX_HEADER: usize = 64;

/// The most pieces that one request names; more go in several (streams) or are refused (datagrams).
pub(crate) const MAX_PIECES: usize = libc::UIO_MAXIOV as usize;

/// The longest datagrams, in bytes of payload.
const MAX_UDP4: usize = 65_507;
const MAX_UDP6: usize = 65_527;

/// A small copied header.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    bytes: [u8; MAX_HEADER],
    len: u8,
}

impl Header {
    pub(crate) const EMPTY: Self = Self { bytes: [0; MAX_HEADER], len: 0 };

    pub(crate) fn new(bytes: &[u8]) -> Result<Self> {
        let mut header = Self { len: bytes.len() as u8, ..Self::EMPTY };
        header
            .bytes
            .get_mut(..bytes.len())
            .ok_or(Error::Invalid(
                "a header before a lent payload is at most 64 bytes (MAX_HEADER)",
            ))?
            .copy_from_slice(bytes);
        Ok(header)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A send from its acceptance to its return.
pub(crate) struct SendOp {
    pub(crate) socket: Rc<SocketShared>,
    pub(crate) engine: Engine,
    pub(crate) header: Header,
    pub(crate) address: Option<SockAddr>,
    /// `None` once the buffer has been handed on.
    pub(crate) loan: Option<Loan>,
    /// Header and payload bytes.
    pub(crate) total: usize,
    /// Of which the kernel took so many.
    pub(crate) done: usize,
    /// Requests whose first completion has not come: the kernel may look at the record.
    pub(crate) in_kernel: u32,
    /// Return signals that have not come.
    pub(crate) awaiting: u32,
    /// Bytes of each zero-copy attempt.
    attempts: SmallVec<[u32; 4]>,
    pub(crate) tally: Tally,
    pub(crate) result: Option<Result<usize>>,
    pub(crate) cancelled: bool,
    /// The driver's turn in which the request was submitted.
    pub(crate) turn: u32,
    /// Whether the header lies in memory that the kernel may hold until the return.
    pub(crate) header_lent: bool,
    pub(crate) group: Option<GroupKey>,
    /// Someone holds a [`Sent`](crate::Sent).
    pub(crate) sent_held: bool,
    /// Someone holds an [`OnLoan`](crate::OnLoan).
    pub(crate) loan_held: bool,
    pub(crate) sent_waker: Option<Waker>,
    pub(crate) loan_waker: Option<Waker>,
    pub(crate) iovecs: SmallVec<[libc::iovec; 4]>,
    pub(crate) message: MaybeUninit<libc::msghdr>,
}

impl SendOp {
    pub(crate) fn new(
        socket: Rc<SocketShared>,
        engine: Engine,
        loan: Loan,
        header: Header,
        address: Option<SockAddr>,
    ) -> Self {
        let total = loan.len() + header.as_slice().len();
        Self {
            socket,
            engine,
            header,
            address,
            loan: Some(loan),
            total,
            done: 0,
            in_kernel: 0,
            awaiting: 0,
            attempts: SmallVec::new(),
            tally: Tally::default(),
            result: None,
            cancelled: false,
            turn: 0,
            header_lent: false,
            group: None,
            sent_held: true,
            loan_held: true,
            sent_waker: None,
            loan_waker: None,
            iovecs: SmallVec::new(),
            message: MaybeUninit::uninit(),
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.in_kernel > 0 || self.awaiting > 0
    }

    /// Whether the kernel holds nothing but pages of mappings, which outlive those.
    pub(crate) fn only_pages_held(&self) -> bool {
        self.in_kernel == 0
            && !self.header_lent
            && self.loan.as_ref().is_none_or(Loan::outlives_its_mapping)
    }

    pub(crate) fn is_returned(&self) -> bool {
        self.result.is_some() && !self.kernel_holds()
    }

    /// Header bytes that the kernel has not taken.
    pub(crate) fn header_left(&self) -> &[u8] {
        let header = self.header.as_slice();
        &header[self.done.min(header.len())..]
    }

    /// The single range that is left of the payload, with its length, if it is one.
    pub(crate) fn payload_left(&self) -> Option<(*const u8, usize, &crate::lease::Piece)> {
        let [piece] = self.loan.as_ref()?.pieces() else { return None };
        let skip = self.done.saturating_sub(self.header.as_slice().len());
        // SAFETY: no more bytes are done than the piece has.
        let start = unsafe { piece.0.start().add(skip) };
        Some((start.as_ptr().cast_const(), piece.0.len() - skip, &piece.0))
    }

    /// Lays out what is left as a message in the record, and gives its address. The header is left
    /// out when a request of its own carries it.
    pub(crate) fn lay_out(&mut self, with_header: bool) -> *const libc::msghdr {
        self.iovecs.clear();
        let header = self.header.as_slice();
        if with_header && self.done < header.len() {
            let left = &header[self.done..];
            self.iovecs.push(libc::iovec {
                iov_base: left.as_ptr().cast_mut().cast(),
                iov_len: left.len(),
            });
        }
        let mut skip = self.done.saturating_sub(header.len());
        for piece in self.loan.iter().flat_map(Loan::pieces) {
            let piece = &piece.0;
            if skip >= piece.len() && piece.len() > 0 {
                skip -= piece.len();
                continue;
            }
            if self.iovecs.len() == MAX_PIECES {
                break;
            }
            // SAFETY: `skip` is within the piece.
            let start = unsafe { piece.start().add(skip) };
            self.iovecs
                .push(libc::iovec { iov_base: start.as_ptr().cast(), iov_len: piece.len() - skip });
            skip = 0;
        }
        // SAFETY: all-zero bytes are a valid, empty message header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        if let Some(address) = &self.address {
            message.msg_name = address.as_ptr().cast_mut().cast();
            message.msg_namelen = address.len();
        }
        message.msg_iov = self.iovecs.as_mut_ptr();
        message.msg_iovlen = self.iovecs.len();
        self.message.write(message)
    }

    /// The stage of the next zero-copy attempt; its return signal will name it.
    pub(crate) fn next_attempt(&self) -> u8 {
        (self.attempts.len() % usize::from(STAGE_ATTEMPTS)) as u8
    }

    /// The kernel took `bytes` in an attempt whose return signal is to come.
    pub(crate) fn attempted(&mut self, bytes: usize) {
        self.attempts.push(bytes as u32);
        self.awaiting += 1;
    }

    /// The return signal of an attempt: `copied` is the kernel's report, if it makes one.
    pub(crate) fn attempt_returned(&mut self, stage: u8, copied: Option<bool>) {
        let bytes = self.attempts.get(usize::from(stage)).copied().unwrap_or(0);
        self.bytes_returned(u64::from(bytes), copied);
    }

    /// As [`attempt_returned`](Self::attempt_returned), for who counts the bytes elsewhere.
    pub(crate) fn bytes_returned(&mut self, bytes: u64, copied: Option<bool>) {
        self.tally.count(bytes, copied);
        self.awaiting -= 1;
        self.socket.count(|stats| stats.notifications += 1);
        // A send of no bytes says nothing about the route.
        if bytes > 0 {
            self.socket.chooser.borrow_mut().reported(copied);
        }
    }

    /// Settles what the caller is told of the sending.
    pub(crate) fn settle(&mut self, result: Result<usize>) {
        debug_assert!(self.result.is_none(), "a send is settled once");
        if result.is_ok() {
            self.socket.count(|stats| stats.messages += 1);
        }
        self.result = Some(result);
    }

    /// Whether a failure is about zero copy itself, so that copying this send may do better.
    pub(crate) fn may_copy_instead(&self, errno: i32) -> bool {
        let about_zero_copy = match errno {
            libc::ENOMEM | libc::ENOBUFS | libc::EOPNOTSUPP | libc::EINVAL => true,
            libc::EMSGSIZE => self.fits_a_datagram(),
            _ => false,
        };
        about_zero_copy && self.done == 0 && self.socket.chooser.borrow().is_free()
    }

    fn fits_a_datagram(&self) -> bool {
        self.total <= if self.socket.ipv6 { MAX_UDP6 } else { MAX_UDP4 }
    }

    /// An error for the caller, with the limit that it is about.
    pub(crate) fn error(&self, errno: i32) -> Error {
        match errno {
            libc::EMSGSIZE => Error::MessageTooLong {
                size: self.total,
                limit: if self.engine != Engine::Copy && self.fits_a_datagram() {
                    "without copying it may touch 17 pages at most, or as many as the kernel's MAX_SKB_FRAGS \
                     says: start buffers on a page, lend fewer of them, or use the copy engine"
                } else if self.socket.ipv6 {
                    "UDP over IPv6 takes 65527 bytes at most"
                } else {
                    "UDP over IPv4 takes 65507 bytes at most"
                },
            },
            libc::ECANCELED => Error::Canceled { done: self.done },
            _ => crate::ring::slots::memlock_or(
                "sending",
                (self.total - self.done) as u64,
                std::io::Error::from_raw_os_error(errno),
            ),
        }
    }
}

/// Wakes whoever waits for the stage that a send has reached, and lets go of it when it is over.
/// Called after each change.
pub(crate) fn advance(inner: &Inner, key: Key) {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.send(key);
    if op.result.is_some()
        && let Some(waker) = op.sent_waker.take()
    {
        waker.wake();
    }
    if !op.is_returned() {
        return;
    }
    if let Some(waker) = op.loan_waker.take() {
        waker.wake();
    }
    let mut dropped = None;
    if !op.loan_held
        && let Some(loan) = op.loan.take()
    {
        let tally = op.tally;
        op.socket.count(|stats| stats.returned += tally);
        match op.group.take() {
            Some(group) => dropped = inner.groups.borrow_mut().give(group, loan, tally),
            None => dropped = Some(loan),
        }
    }
    let over = !op.sent_held && op.loan.is_none();
    let record = over.then(|| inflight.remove(key));
    // What is dropped may come back to the driver: a chunk to its pool, a slot to its table.
    drop(inflight);
    drop((dropped, record));
}

/// Hands the buffer of a returned send to its holder.
pub(crate) fn take_back(inner: &Inner, key: Key) -> Option<(Loan, Tally)> {
    let back = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.send(key);
        if !op.is_returned() {
            return None;
        }
        let tally = op.tally;
        op.socket.count(|stats| stats.returned += tally);
        op.loan_held = false;
        (op.loan.take().expect("a loan is taken back once"), tally)
    };
    advance(inner, key);
    Some(back)
}

/// Hands the result of a send to its holder.
pub(crate) fn take_sent(inner: &Inner, key: Key) -> Option<Result<usize>> {
    let result = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.send(key);
        let result = op.result.as_mut()?;
        op.sent_held = false;
        std::mem::replace(result, Ok(0))
    };
    advance(inner, key);
    Some(result)
}

/// A handle goes without having been asked: the send goes on, and nobody waits for it.
pub(crate) fn let_go(inner: &Inner, key: Key, change: impl FnOnce(&mut SendOp)) {
    change(inner.inflight.borrow_mut().send(key));
    advance(inner, key);
}
