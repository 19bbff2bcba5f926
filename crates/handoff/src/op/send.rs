//! A send: its request, and how far that got; the [loan](super::lent) may last longer.
//!
//! Contracts:
//! - "sent" (the kernel took all bytes, or failed) and "returned" (the kernel let go of all of them) are
//!   reported separately, in that order;
//! - the record owns the buffer from acceptance of the send until its return, and the socket until it is sent.

use std::num::NonZeroI32;
use std::rc::Rc;
use std::task::Waker;

use super::ancillary::Passing;
use super::failed::Failed;
use super::lent::{BackTo, Lent};
use super::loan::Loan;
use super::socket_state::SocketShared;
use super::waiter::Waiter;
use crate::error::{Error, Result};
use crate::mechanism::Engine;
use crate::memory::AddressRange;
use crate::receipt::Receipt;
use crate::ring::token::Stage;

/// RawSpan of a send in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InChain {
    /// There is no other request.
    Alone,
    First,
    /// It starts when the one before it is through.
    Behind,
}

/// The most datagrams that kernels make of one message (128 from Linux 6.9 on, 64 before).
const MAX_SEGMENTS: usize = 64;

/// So many bytes touch 16 pages at any alignment. A zero-copy message may touch 17, so one is left for a
/// header.
const LENT_AT_ONCE: usize = 15 << 12;

/// A send from its acceptance to its return. Each send writes and reads it once, so rare fields stand
/// behind a pointer.
pub(crate) struct SendOp {
    /// `None` once the kernel has no request of it.
    socket: Option<Rc<SocketShared>>,
    pub(crate) lent: Lent,
    pub(crate) engine: Engine,
    /// Bytes of the header, which is in the record's layout.
    header_len: u8,
    /// Bytes of each datagram if the send has several; else 0.
    pub(crate) segment: u16,
    /// Whether the record's layout has a destination.
    pub(crate) addressed: bool,
    /// Whether another send follows at once; the end of this one may wait for it.
    pub(crate) more: bool,
    /// Whether the ring sends it on a TLS connection, by the slot of its memory.
    pub(crate) by_slot: bool,
    /// It has no bytes, and tells the peer of a TLS connection that nothing follows.
    #[cfg(feature = "tls")]
    pub(crate) closes: bool,
    /// Header and payload bytes.
    pub(crate) total: usize,
    /// Of these, bytes that the kernel took.
    pub(crate) done: usize,
    /// Requests without their first completion: the kernel may read the record.
    pub(crate) in_kernel: u32,
    /// One of these is the driver's wait for room.
    pub(crate) waits_for_room: bool,
    /// The errno that makes this send copy although its socket chose otherwise.
    failure: Option<NonZeroI32>,
    pub(crate) state: SendState,
    /// The driver's turn that submitted the request.
    pub(crate) turn: u32,
    pub(crate) in_chain: InChain,
    /// The slot in the ring's table of buffers that the last request named.
    pub(crate) slot: Option<u16>,
    /// Whether that request could have named one, and did not.
    pub(crate) kept_from_slot: bool,
    /// Whether the header lies in memory that the kernel may hold until the return.
    pub(crate) header_lent: bool,
    /// The holder of the [`Sent`](crate::Sent).
    pub(crate) sent: Waiter,
    /// Descriptors that go with the first byte.
    pub(crate) passing: Option<Box<Passing>>,
}

/// How far a send has come.
pub(crate) enum SendState {
    /// It continues until the kernel has taken all bytes.
    Going,
    /// The socket had no room, and the request did not wait: the driver waits, when no request is under
    /// way.
    Blocked,
    /// It ends when no request is under way: one failed with this errno, or somebody asked it to.
    Ending(Option<NonZeroI32>),
    /// The kernel has taken all bytes, or an error, and has no request. Some bytes may still be on loan.
    Settled(Result<usize, Box<Error>>),
    /// The same, and its holder has the result.
    Told,
}

impl SendOp {
    /// A send without its [loan](Lent::new).
    #[inline(always)]
    pub(crate) fn new(
        socket: Rc<SocketShared>,
        engine: Engine,
        total: usize,
        header_len: usize,
    ) -> Self {
        Self {
            lent: Lent::new(Rc::clone(&socket.lender)),
            socket: Some(socket),
            engine,
            header_len: header_len as u8,
            segment: 0,
            addressed: false,
            more: false,
            by_slot: false,
            #[cfg(feature = "tls")]
            closes: false,
            total,
            done: 0,
            in_kernel: 0,
            waits_for_room: false,
            failure: None,
            state: SendState::Going,
            turn: 0,
            in_chain: InChain::Alone,
            slot: None,
            kept_from_slot: false,
            header_lent: false,
            sent: Waiter::Polls,
            passing: None,
        }
    }

    /// The socket, which the request has until it is over.
    #[inline(always)]
    pub(crate) fn socket(&self) -> &Rc<SocketShared> {
        self.socket.as_ref().expect("a request has its socket")
    }

    /// Whether it goes in the order of its socket's sends.
    #[inline(always)]
    pub(crate) fn keeps_order(&self) -> bool {
        let socket = self.socket();
        socket.stream || (socket.unix && !self.addressed)
    }

    /// The socket, if it is still needed.
    pub(crate) fn socket_if_needed(&self) -> Option<&Rc<SocketShared>> {
        self.socket.as_ref()
    }

    /// Whether the socket can go: the request is over, and the loan does without it.
    #[inline(always)]
    fn is_done_with_socket(&self) -> bool {
        self.in_kernel == 0
            && self.is_settled()
            && (self.lent.awaiting == 0 || !self.lent.told_by_socket)
    }

    /// Lets go of the socket if it is needed no more, and others have it; returns whether this was the last to have it,
    /// which [`take_socket`](Self::take_socket) then takes.
    #[inline(always)]
    pub(crate) fn leaves_socket(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        if !self.is_done_with_socket() {
            return false;
        }
        if Rc::strong_count(socket) > 1 {
            self.socket = None;
            return false;
        }
        true
    }

    /// The socket that is needed no more, to be dropped where that may use the driver.
    pub(crate) fn take_socket(&mut self) -> Option<Rc<SocketShared>> {
        if self.is_done_with_socket() { self.socket.take() } else { None }
    }

    /// Whether nobody waits for the send, nor can give it up: it is sent, or nobody has its socket.
    #[inline]
    pub(crate) fn is_unclaimed(&self) -> bool {
        let is_left = |socket: &Rc<SocketShared>| socket.is_left();
        self.sent.is_gone()
            && self.lent.is_left()
            && (self.is_settled() || self.socket.as_ref().is_none_or(is_left))
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.in_kernel > 0 || self.lent.awaiting > 0
    }

    /// Whether the kernel holds only pages of mappings, which outlive the mappings.
    pub(crate) fn only_pages_held(&self) -> bool {
        self.in_kernel == 0
            && !self.header_lent
            && self.lent.loan.as_ref().is_none_or(Loan::outlives_its_mapping)
    }

    /// Drops the parts of a leaked record that the kernel does not hold: otherwise its peer would wait for
    /// the end of the connection, and its region would be kept.
    pub(crate) fn close_abandoned(&'static mut self) {
        if self.in_kernel == 0 && self.lent.loan.as_ref().is_some_and(Loan::outlives_its_mapping) {
            self.lent.loan = None;
        }
        // A request under way holds the open socket itself, and lets go of it with the ring.
        self.socket = None;
        self.lent.lender.close();
    }

    pub(crate) fn is_returned(&self) -> bool {
        self.is_settled() && !self.kernel_holds()
    }

    /// What happened to the send so far.
    pub(crate) fn receipt(&self) -> Receipt {
        Receipt { engine: Some(self.engine), ..self.lent.receipt }
    }

    /// Whether the stage that the send has reached needs more than a holder that polls.
    pub(crate) fn needs_settling(&self) -> bool {
        self.is_settled()
            && (self.sent.waits()
                || (!self.kernel_holds()
                    && !matches!(self.lent.back_to, BackTo::Holder(Waiter::Polls))))
    }

    /// Drops everything that a send owns except its lender; its buffer was given away and its handles are gone. Returns
    /// the socket.
    #[inline]
    pub(crate) fn strip(&mut self) -> Option<Rc<SocketShared>> {
        debug_assert!(self.sent.is_gone());
        self.passing = None;
        self.lent.strip();
        self.state = SendState::Told;
        self.socket.take()
    }

    /// Whether the kernel has taken all bytes, or failed to.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, SendState::Settled(_) | SendState::Told)
    }

    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.state, SendState::Ending(_))
    }

    /// Whether a request has failed, and another may be under way.
    pub(crate) fn is_failing(&self) -> bool {
        matches!(self.state, SendState::Ending(Some(_)))
    }

    /// Asks the send to end, unless it has ended; returns whether that is new.
    pub(crate) fn ask_to_end(&mut self) -> bool {
        let news = matches!(self.state, SendState::Going | SendState::Blocked);
        if news {
            self.state = SendState::Ending(None);
        }
        news
    }

    /// Ends a send that is to end; no request of it is under way.
    pub(crate) fn end_if_ending(&mut self) {
        if let SendState::Ending(errno) = self.state {
            let canceled = Error::Canceled { done: self.done };
            self.fail(errno.map_or(canceled, |errno| self.zero_copy_error(errno.get())));
        }
    }

    /// Goes on when no request of it is under way: it settles if it is over. Returns whether it waits for room.
    #[inline(always)]
    pub(crate) fn settle_or_wait(&mut self) -> bool {
        match self.state {
            SendState::Blocked => {
                self.state = SendState::Going;
                return true;
            }
            SendState::Going | SendState::Ending(None) if self.done == self.total => self.succeed(),
            SendState::Ending(_) => self.end_if_ending(),
            SendState::Going | SendState::Settled(_) | SendState::Told => {}
        }
        false
    }

    /// The result, for its holder, who goes.
    pub(crate) fn tell(&mut self) -> Option<Result<usize>> {
        let SendState::Settled(result) = &mut self.state else { return None };
        let result = std::mem::replace(result, Ok(0));
        self.state = SendState::Told;
        Some(result.map_err(|error| *error))
    }

    /// Wakers of both holders.
    pub(crate) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        [self.sent.take_waker(), self.lent.take_waker()].into_iter().flatten()
    }

    pub(crate) fn header_len(&self) -> usize {
        usize::from(self.header_len)
    }

    /// The most bytes in one message: for a send of several datagrams, as many whole ones as the kernel takes
    /// at once.
    pub(crate) fn message_room(&self) -> usize {
        match usize::from(self.segment) {
            0 => usize::MAX,
            segment => (LENT_AT_ONCE / segment).clamp(1, MAX_SEGMENTS) * segment,
        }
    }

    /// Whether a request of its own carries the rest of the header.
    pub(crate) fn header_goes_apart(&self) -> bool {
        self.lent.lender.stream && self.done < self.header_len()
    }

    /// The rest of the payload, if it is one range.
    #[inline(always)]
    pub(crate) fn payload_left(&self, ring: u32) -> Option<AddressRange> {
        self.lent.loan.as_ref()?.sole(self.done.saturating_sub(self.header_len()), ring)
    }

    /// Whether the ring sends it: the ring sends whatever the kernel has in a slot, copied or not.
    pub(crate) fn goes_by_ring(&self) -> bool {
        self.engine == Engine::UringZc
            || self.by_slot
            || self.lent.loan.as_ref().is_some_and(Loan::is_of_kernel)
    }

    /// Whether the memory has left the ring's table, or moved in it, since the last request: the kernel
    /// found no memory there, or another.
    pub(crate) fn lost_its_slot(&self, ring: u32) -> bool {
        self.slot.is_some() && self.slot != self.lent.loan.as_ref().and_then(|loan| loan.slot(ring))
    }

    /// The stage of the request that holds the send up, if one does.
    pub(crate) fn under_way(&self) -> Option<Stage> {
        match self.in_kernel {
            0 => None,
            _ if self.waits_for_room => Some(Stage::Ready),
            _ if !self.goes_by_ring() => None,
            1 => Some(self.lent.next_attempt()),
            // The payload follows its header.
            _ => Some(Stage::Header),
        }
    }

    /// The kernel has taken all bytes; the caller is told so.
    #[inline(always)]
    pub(crate) fn succeed(&mut self) {
        debug_assert!(!self.is_settled(), "a send is settled once");
        self.lent.lender.count(|stats| stats.messages += 1);
        self.state = SendState::Settled(Ok(self.done));
    }

    /// A request has failed: the send fails when the last of its requests is over.
    pub(crate) fn fail_with_last(&mut self, errno: i32) {
        self.state = SendState::Ending(NonZeroI32::new(errno));
    }

    /// The rest of the bytes is not sent, and the caller is told why.
    #[cold]
    pub(crate) fn fail(&mut self, error: Error) {
        debug_assert!(!self.is_settled(), "a send is settled once");
        self.passing = None;
        self.state = SendState::Settled(Err(Box::new(error)));
    }

    /// Whether a failure is about zero copy itself, so that copying this send may work.
    pub(crate) fn may_copy_instead(&self, errno: i32) -> bool {
        self.about_failure().is_about_zero_copy(errno)
            && self.lent.lender.chooser.borrow().is_free()
    }

    /// Makes the send copy; see [`copy_went_through`](Self::copy_went_through).
    pub(crate) fn copy_instead(&mut self, errno: i32) {
        if errno != libc::EMSGSIZE {
            self.failure = NonZeroI32::new(errno);
        }
        self.engine = Engine::Copy;
    }

    /// If the copy works, zero copy failed and not the send.
    pub(crate) fn copy_went_through(&mut self) {
        if let Some(errno) = self.failure.take() {
            let reason = format!("zero-copy send failed: {}", self.zero_copy_error(errno.get()));
            self.lent.lender.chooser.borrow_mut().failed(reason);
        }
    }

    fn about_failure(&self) -> Failed<'_> {
        Failed {
            socket: self.socket(),
            done: self.done,
            total: self.total,
            segment: self.segment,
            addressed: self.addressed,
            copies: self.engine == Engine::Copy,
        }
    }

    /// An error for the caller, with the limit that was hit.
    pub(crate) fn error(&self, errno: i32) -> Error {
        self.about_failure().error(errno)
    }

    /// As [`error`](Self::error), for a zero-copy attempt, which may need locked pages unless they are
    /// registered.
    pub(crate) fn zero_copy_error(&self, errno: i32) -> Error {
        let failed = self.about_failure();
        if self.slot.is_some() { failed.error(errno) } else { failed.zero_copy_error(errno) }
    }
}
