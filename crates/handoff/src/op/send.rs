//! A send: what it is, and how far it got.
//!
//! Contracts:
//! - "sent" (the kernel took all bytes, or failed) and "returned" (the kernel let go of all of them) are
//!   reported separately, in that order;
//! - the record owns the buffer from acceptance of the send until its return;
//! - each return signal is matched with the bytes of the attempt that it belongs to.

use std::num::NonZeroI32;
use std::rc::Rc;
use std::task::Waker;

use super::failed::Failed;
use super::group::GroupKey;
use super::loan::Loan;
use super::socket_state::SocketShared;
use super::waiter::Waiter;
use crate::error::{Error, Result};
use crate::mechanism::Engine;
use crate::memory::AddressRange;
use crate::receipt::Receipt;
use crate::ring::token::{STAGE_ATTEMPTS, STAGE_HEADER, STAGE_READY};

/// Place of a send in its chain.
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
    pub(crate) socket: Rc<SocketShared>,
    pub(crate) engine: Engine,
    /// `None` once the buffer has been handed on.
    pub(crate) loan: Option<Loan>,
    /// Bytes of the header, which is in the record's layout.
    header_len: u8,
    /// Bytes of each datagram if the send has several; else 0.
    pub(crate) segment: u16,
    /// Whether the record's layout has a destination.
    pub(crate) addressed: bool,
    /// Whether another send follows at once; the end of this one may wait for it.
    pub(crate) more: bool,
    /// Header and payload bytes.
    pub(crate) total: usize,
    /// Of these, bytes that the kernel took.
    pub(crate) done: usize,
    /// Requests without their first completion: the kernel may read the record.
    pub(crate) in_kernel: u32,
    /// One of these is the driver's wait for room.
    pub(crate) waits_for_room: bool,
    /// Return signals that have not come.
    pub(crate) awaiting: u32,
    attempts: Attempts,
    pub(crate) receipt: Receipt,
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
    pub(crate) back_to: BackTo,
}

/// The zero-copy attempts of a send; most sends need one.
#[derive(Default)]
struct Attempts {
    made: u32,
    /// Bytes of the first attempt whose return signal will come.
    first: Option<u32>,
    /// The same of later attempts, in order.
    later: Vec<Option<u32>>,
}

impl Attempts {
    /// The stage of the next attempt; its return signal will name it.
    #[inline]
    fn next_stage(&self) -> u8 {
        (self.made % u32::from(STAGE_ATTEMPTS)) as u8
    }

    /// An attempt is over: the bytes that the kernel took if it announced a return signal, otherwise
    /// `None`.
    #[inline]
    fn push(&mut self, bytes: Option<u32>) {
        match self.made {
            0 => self.first = bytes,
            _ => self.later.push(bytes),
        }
        self.made += 1;
    }

    /// A return signal: of the oldest attempt that has this stage and has not returned, since stages repeat.
    /// Returns its bytes.
    #[inline]
    fn take(&mut self, stage: u8) -> Option<u32> {
        if stage == 0 && self.first.is_some() {
            return self.first.take();
        }
        self.take_later(stage)
    }

    #[cold]
    fn take_later(&mut self, stage: u8) -> Option<u32> {
        let stages = usize::from(STAGE_ATTEMPTS);
        let oldest = (usize::from(stage) + stages - 1) % stages;
        self.later.iter_mut().skip(oldest).step_by(stages).find_map(Option::take)
    }
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

/// Who gets the buffer of a send when the kernel lets go of it.
pub(crate) enum BackTo {
    /// The holder of the [`OnLoan`](crate::OnLoan).
    Holder(Waiter),
    /// The group; no handle has it.
    Group(GroupKey),
}

impl SendOp {
    /// A send without its loan, which is [put in](Self::lend) when the send is in place: moving the loan
    /// costs more than all the rest.
    #[inline(always)]
    pub(crate) fn new(
        socket: Rc<SocketShared>,
        engine: Engine,
        total: usize,
        header_len: usize,
    ) -> Self {
        Self {
            socket,
            engine,
            loan: None,
            header_len: header_len as u8,
            segment: 0,
            addressed: false,
            more: false,
            total,
            done: 0,
            in_kernel: 0,
            waits_for_room: false,
            awaiting: 0,
            attempts: Attempts::default(),
            receipt: Receipt::default(),
            failure: None,
            state: SendState::Going,
            turn: 0,
            in_chain: InChain::Alone,
            slot: None,
            kept_from_slot: false,
            header_lent: false,
            sent: Waiter::Polls,
            back_to: BackTo::Holder(Waiter::Polls),
        }
    }

    /// Puts the buffer of a new send in.
    #[inline(always)]
    pub(crate) fn lend(&mut self, loan: Loan) {
        let before = self.loan.replace(loan);
        debug_assert!(before.is_none(), "a send has one buffer");
        // The compiler does not know that there was none.
        std::mem::forget(before);
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.in_kernel > 0 || self.awaiting > 0
    }

    /// Whether the kernel holds only pages of mappings, which outlive the mappings.
    pub(crate) fn only_pages_held(&self) -> bool {
        self.in_kernel == 0
            && !self.header_lent
            && self.loan.as_ref().is_none_or(Loan::outlives_its_mapping)
    }

    /// Drops the parts of a leaked record that the kernel does not hold: otherwise its peer would wait for
    /// the end of the connection, and its region would be kept.
    pub(crate) fn close_abandoned(&'static mut self) {
        if self.in_kernel == 0 && self.loan.as_ref().is_some_and(Loan::outlives_its_mapping) {
            self.loan = None;
        }
        // A request under way holds the open socket itself, and lets go of it with the ring.
        // SAFETY: the record is leaked and this is the only reference to it, which ends here, so nobody
        // uses the socket through it again.
        unsafe { std::ptr::drop_in_place(&raw mut self.socket) };
    }

    pub(crate) fn is_returned(&self) -> bool {
        self.is_settled() && !self.kernel_holds()
    }

    /// What happened to the send so far.
    pub(crate) fn receipt(&self) -> Receipt {
        Receipt { engine: Some(self.engine), ..self.receipt }
    }

    /// Whether the stage that the send has reached needs more than a holder that polls.
    pub(crate) fn is_due(&self) -> bool {
        self.is_settled()
            && (self.sent.waits()
                || (!self.kernel_holds() && !matches!(self.back_to, BackTo::Holder(Waiter::Polls))))
    }

    /// Drops everything that a send owns except its socket; its buffer was given away and its handles are
    /// gone.
    #[inline]
    pub(crate) fn strip(&mut self) {
        debug_assert!(self.loan.is_none() && self.sent.is_gone());
        debug_assert!(matches!(self.back_to, BackTo::Holder(Waiter::Gone)));
        self.attempts = Attempts::default();
        self.state = SendState::Told;
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

    /// The result, for its holder, who goes.
    pub(crate) fn tell(&mut self) -> Option<Result<usize>> {
        let SendState::Settled(result) = &mut self.state else { return None };
        let result = std::mem::replace(result, Ok(0));
        self.state = SendState::Told;
        Some(result.map_err(|error| *error))
    }

    /// The buffer's holder goes, or has the buffer. Returns the holder's waker.
    #[must_use]
    pub(crate) fn give_up_buffer(&mut self) -> Option<Waker> {
        match &mut self.back_to {
            BackTo::Holder(holder) => holder.leave(),
            BackTo::Group(_) => None,
        }
    }

    /// The buffer's holder waits for its return. Returns the old waker.
    pub(crate) fn wait_for_buffer(&mut self, waker: Waker) -> Option<Waker> {
        match &mut self.back_to {
            BackTo::Holder(holder) => holder.wait(waker),
            BackTo::Group(_) => unreachable!("a group's buffers have no holder"),
        }
    }

    /// Wakers of both holders.
    pub(crate) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let back = match &mut self.back_to {
            BackTo::Holder(holder) => holder.take_waker(),
            BackTo::Group(_) => None,
        };
        [self.sent.take_waker(), back].into_iter().flatten()
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
        self.socket.stream && self.done < self.header_len()
    }

    /// The rest of the payload, if it is one range.
    #[inline(always)]
    pub(crate) fn payload_left(&self, ring: u32) -> Option<AddressRange> {
        self.loan.as_ref()?.sole(self.done.saturating_sub(self.header_len()), ring)
    }

    /// Whether the ring sends it: the ring sends whatever the kernel has in a slot, copied or not.
    pub(crate) fn goes_by_ring(&self) -> bool {
        self.engine == Engine::UringZc || self.loan.as_ref().is_some_and(Loan::is_of_kernel)
    }

    /// Whether the memory has left the ring's table, or moved in it, since the last request: the kernel
    /// found no memory there, or another.
    pub(crate) fn lost_its_slot(&self, ring: u32) -> bool {
        self.slot.is_some() && self.slot != self.loan.as_ref().and_then(|loan| loan.slot(ring))
    }

    /// The stage of the next zero-copy attempt; its return signal will name it.
    pub(crate) fn next_attempt(&self) -> u8 {
        self.attempts.next_stage()
    }

    /// The stage of the request that holds the send up, if one does.
    pub(crate) fn under_way(&self) -> Option<u8> {
        match self.in_kernel {
            0 => None,
            _ if self.waits_for_room => Some(STAGE_READY),
            _ if !self.goes_by_ring() => None,
            1 => Some(self.next_attempt()),
            // The payload follows its header.
            _ => Some(STAGE_HEADER),
        }
    }

    /// An attempt is over: the bytes that the kernel took if it announced a return signal, otherwise
    /// `None`. In both cases the attempt keeps its stage to itself: an unannounced signal may come.
    pub(crate) fn attempted(&mut self, bytes: Option<usize>) {
        self.attempts.push(bytes.map(|bytes| bytes as u32));
        if bytes.is_some() {
            self.awaiting += 1;
            self.socket.lent_by_ring.update(|count| count + 1);
        }
    }

    /// Bytes are back, or were never lent: records what happened to them.
    pub(crate) fn account(&mut self, bytes: u64, copied: Option<bool>) {
        self.receipt.tally.count(bytes, copied);
        self.socket.count(|stats| stats.returned.count(bytes, copied));
    }

    /// The return signal of an attempt: `copied` is the kernel's report, if it makes one.
    #[inline(always)]
    pub(crate) fn attempt_returned(&mut self, stage: u8, copied: Option<bool>) {
        if let Some(bytes) = self.attempts.take(stage) {
            self.socket.lent_by_ring.update(|count| count - 1);
            self.bytes_returned(u64::from(bytes), copied);
        }
    }

    /// As [`attempt_returned`](Self::attempt_returned), for a caller that counts the bytes elsewhere.
    #[inline(always)]
    pub(crate) fn bytes_returned(&mut self, bytes: u64, copied: Option<bool>) {
        self.awaiting -= 1;
        self.receipt.tally.count(bytes, copied);
        self.receipt.notifications += 1;
        self.socket.count(|stats| {
            stats.returned.count(bytes, copied);
            stats.notifications += 1;
        });
        // A send of no bytes says nothing about the route.
        if bytes > 0 {
            self.socket.chooser.borrow_mut().reported(copied);
        }
    }

    /// The kernel has taken all bytes; the caller is told so.
    #[inline(always)]
    pub(crate) fn succeed(&mut self) {
        debug_assert!(!self.is_settled(), "a send is settled once");
        self.socket.count(|stats| stats.messages += 1);
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
        self.state = SendState::Settled(Err(Box::new(error)));
    }

    /// Whether a failure is about zero copy itself, so that copying this send may work.
    pub(crate) fn may_copy_instead(&self, errno: i32) -> bool {
        self.about_failure().is_about_zero_copy(errno) && self.socket.chooser.borrow().is_free()
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
            self.socket.chooser.borrow_mut().failed(reason);
        }
    }

    fn about_failure(&self) -> Failed<'_> {
        Failed {
            socket: &self.socket,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_signal_is_of_the_oldest_attempt_that_has_its_stage() {
        let stages = u32::from(STAGE_ATTEMPTS);
        let is_lent = |number: &u32| number % 7 != 3;
        for begin in [0, 3] {
            let mut attempts = Attempts::default();
            for number in begin..3 * stages {
                assert_eq!(u32::from(attempts.next_stage()), (number - begin) % stages);
                attempts.push(is_lent(&number).then_some(number));
            }
            for number in (begin..3 * stages).filter(is_lent) {
                let stage = ((number - begin) % stages) as u8;
                assert_eq!(attempts.take(stage), Some(number));
            }
            // Signals that nothing announced.
            assert!((0..STAGE_ATTEMPTS).all(|stage| attempts.take(stage).is_none()));
        }
    }
}
