//! Received spans that leave the driver's thread, and how their chunks come home.
//!
//! Minimum kernel, capability and return signal: those of the span.
//!
//! Contracts:
//! - the driver keeps the ticket; the span that leaves has a number, and says it on whatever thread drops it. The driver's
//!   next turn drops the ticket, as a drop of the span here would have;
//! - how many leave at once is bounded, and the driver allocates nothing for one in steady state;
//! - when the driver goes, the memory of those that are still away stays, and no chunk of theirs goes back to a pool. A
//!   chunk of an rx queue goes back from the thread that drops the span, and its ring stays open until then.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::datagram::{self, DATAGRAM_HEAD, Datagram};
use super::pending::Pending;
use super::received::{Span, Ticket};
use super::returns::Returns;
use crate::error::{Error, Result};
use crate::memory::IoBuf;

/// Received bytes for any thread: see [`Span::into_send`](crate::Span::into_send). Dropping it gives the chunk back with
/// the driver's next turn, which it wakes.
///
/// With the feature `bytes` it becomes `bytes::Bytes` without a copy (`Bytes::from`), which you can clone and split. You
/// can lend it as it is ([`IoBuf`]), by a driver of any thread.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::Receiver) -> Result<(), Box<dyn std::error::Error>> {
/// let (to_worker, work) = std::sync::mpsc::channel::<handoff::SendSpan>();
/// std::thread::spawn(move || {
///     for span in work {
///         println!("{} bytes, and their chunk goes back from here", span.len());
///     }
/// });
/// while let Some(span) = receiver.next_span().await {
///     to_worker.send(span?.into_send()?)?;
/// }
/// # Ok(()) }
/// ```
pub struct SendSpan {
    start: NonNull<u8>,
    len: usize,
    /// The head of a datagram, before the bytes.
    head: Option<NonNull<u8>>,
    place: u32,
    /// Where its chunk is missed, if it has one.
    home: Option<Arc<Returns>>,
}

// SAFETY: the span has its bytes alone, in memory that is kept until it says, on whatever thread, that it goes.
unsafe impl Send for SendSpan {}
// SAFETY: shared access only reads the bytes, which nobody writes meanwhile.
unsafe impl Sync for SendSpan {}

/// The tickets of spans that are away, each at its place.
#[derive(Default)]
struct Away {
    tickets: Vec<Option<Ticket>>,
    free: Vec<u32>,
    /// Kept between turns.
    left: Vec<u32>,
}

/// Reaches the tickets. `act` must not drop any: that may run foreign code.
fn with<T>(pending: &Pending, act: impl FnOnce(&mut Away) -> T) -> T {
    let mut away = pending.away.borrow_mut();
    let away = away.get_or_insert_with(|| Box::<Away>::default());
    act(away.downcast_mut().expect("only tickets are put there"))
}

/// Whether any span is away.
pub(crate) fn any_away(pending: &Pending) -> bool {
    pending.away.borrow().is_some() && with(pending, |away| away.tickets.len() > away.free.len())
}

/// Gives back the chunks of spans that other threads have dropped.
#[cold]
pub(crate) fn bring_back(pending: &Pending) {
    // Who turns the driver is told of receivers that start: a panic of theirs must not keep a ticket.
    pending.wakes.wake_behind(|| {
        let mut left = with(pending, |away| mem::take(&mut away.left));
        pending.returns.take(&mut left);
        for place in left.drain(..) {
            let ticket = with(pending, |away| {
                away.free.push(place);
                away.tickets[place as usize].take()
            });
            drop(ticket);
        }
        with(pending, |away| away.left = left);
    });
}

/// Nobody turns the driver any more: what is away keeps its memory itself.
pub(crate) fn leave_away(pending: &Pending) {
    bring_back(pending);
    let tickets = with(pending, mem::take).tickets;
    let kept = tickets.into_iter().map(|ticket| ticket.map(Ticket::into_keep)).collect();
    pending.returns.close(kept);
}

impl SendSpan {
    /// Makes one of a span, or returns the span with the reason.
    pub(crate) fn of(span: Span) -> Result<Self, (Span, Error)> {
        let Some(pending) = span.ticket().pending() else {
            if span.ticket().is_of_nowhere() {
                return Ok(Self {
                    start: NonNull::dangling(),
                    len: 0,
                    head: None,
                    place: 0,
                    home: None,
                });
            }
            return Err((span, Error::DriverGone));
        };
        if !pending.is_here() {
            return Err((span, Error::OtherProcess));
        }
        if pending.is_gone() {
            return Err((span, Error::DriverGone));
        }
        let place = match free_place(&pending) {
            Ok(place) => place,
            Err(error) => return Err((span, error)),
        };
        let (start, len, ticket) = span.take_apart();
        let ticket = match ticket.unshare() {
            Ok(ticket) => ticket,
            Err(ticket) => {
                with(&pending, |away| away.free.push(place));
                return Err((Span::put_together(start, len, ticket), Error::Invalid(SPLIT)));
            }
        };
        let head = ticket.head();
        with(&pending, |away| away.tickets[place as usize] = Some(ticket));
        let home = Some(Arc::clone(&pending.returns));
        Ok(Self { start, len, head, place, home })
    }

    /// As [`Span::datagram`].
    pub fn datagram(&self) -> Option<Datagram> {
        // SAFETY: the chunk begins with a head, which is kept and stays as it is as long as the span is there.
        let head =
            |head: NonNull<u8>| unsafe { std::slice::from_raw_parts(head.as_ptr(), DATAGRAM_HEAD) };
        self.head.and_then(|at| datagram::parse(head(at)))
    }
}

const SPLIT: &str = "the span was split, and another part of it is there, which shares the chunk: drop that part first, or \
                     make the whole span a SendSpan, and split the Bytes that it becomes";

/// Takes a place; one that another thread has just left will do.
fn free_place(pending: &Rc<Pending>) -> Result<u32> {
    let limit = pending.most_away.get();
    let take = |away: &mut Away| {
        away.free.pop().or_else(|| {
            let place = u32::try_from(away.tickets.len()).ok()?;
            (away.tickets.len() < limit).then(|| {
                away.tickets.push(None);
                place
            })
        })
    };
    if let Some(place) = with(pending, take) {
        return Ok(place);
    }
    bring_back(pending);
    with(pending, take).ok_or(Error::SpansAway { limit })
}

impl Drop for SendSpan {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.leave(self.place);
        }
    }
}

impl Deref for SendSpan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the span has initialised bytes alone, as the span that it was had, and their memory is kept.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for SendSpan {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the bytes stay where they are and as they are until the span is dropped.
unsafe impl IoBuf for SendSpan {
    fn stable_ptr(&mut self) -> NonNull<u8> {
        self.start
    }

    fn stable_len(&self) -> usize {
        self.len
    }
}

#[cfg(feature = "bytes")]
impl From<SendSpan> for bytes::Bytes {
    /// The same bytes, where they are. The chunk goes back when the last handle and part of them goes.
    fn from(span: SendSpan) -> Self {
        Self::from_owner(span)
    }
}

impl fmt::Debug for SendSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSpan").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;

    use super::*;
    use crate::lease::Arrivals;
    use crate::lease::rx_shared::RxShared;
    use crate::ring::RawSpan;

    const PAGE: usize = 4096;

    /// Takes in completions as from the kernel: a span of each of these chunks.
    fn told(queue: &Rc<RxShared>, chunks: std::ops::Range<usize>) -> Vec<Span> {
        let mut arrivals = Arrivals::new(Some(Rc::clone(queue)));
        let told: Vec<_> = chunks.map(|it| RawSpan { begin: (it * PAGE) as u64, len: 9 }).collect();
        let (spans, bytes) = arrivals.push_told(&told);
        queue.arrived(spans, bytes, -1);
        arrivals.collect()
    }

    #[test]
    fn a_chunk_comes_home_from_another_thread_with_the_next_turn() {
        let pending = Rc::<Pending>::default();
        let (queue, given_back) = RxShared::without_kernel(&pending, 8, PAGE);
        let mut spans = told(&queue, 0..3);
        let last = spans.pop().unwrap().into_send().unwrap();
        let sent: Vec<_> = spans.into_iter().map(|it| it.into_send().unwrap()).collect();
        assert!(any_away(&pending) && !pending.returns.any());
        thread::spawn(move || drop(sent)).join().unwrap();
        queue.publish(-1);
        assert_eq!(given_back(), []);
        assert!(pending.returns.any());
        bring_back(&pending);
        queue.publish(-1);
        assert_eq!(given_back(), [0, PAGE as u64]);
        assert!(any_away(&pending) && !pending.returns.any());
        drop(last);
        bring_back(&pending);
        queue.publish(-1);
        assert_eq!((given_back(), any_away(&pending)), (vec![2 * PAGE as u64], false));
        assert!(!queue.holds_any());
    }

    #[test]
    fn the_limit_is_told_and_places_that_were_left_serve_again() {
        let pending = Rc::<Pending>::default();
        pending.most_away.set(2);
        let (queue, _) = RxShared::without_kernel(&pending, 8, PAGE);
        let mut spans = told(&queue, 0..4).into_iter();
        let mut next = || spans.next().unwrap().into_send();
        let sent = [next().unwrap(), next().unwrap()];
        let refused = next().expect_err("two are away");
        assert!(matches!(refused.error, Error::SpansAway { limit: 2 }), "{}", refused.error);
        assert_eq!(refused.buffer.len(), 9);
        drop(sent);
        let again = refused.buffer.into_send().unwrap();
        assert_eq!(again.len(), 9);
    }

    #[test]
    fn a_part_of_a_split_span_leaves_when_it_is_the_last() {
        let pending = Rc::<Pending>::default();
        let (queue, given_back) = RxShared::without_kernel(&pending, 8, PAGE);
        let mut rest = told(&queue, 0..1).pop().unwrap();
        let head = rest.split_to(4);
        let refused = rest.into_send().expect_err("a part is there");
        assert!(refused.error.to_string().contains("was split"), "{}", refused.error);
        drop(head);
        let sent = refused.buffer.into_send().unwrap();
        assert_eq!(sent.len(), 5);
        drop(sent);
        bring_back(&pending);
        queue.publish(-1);
        assert_eq!(given_back(), [0]);
    }

    #[test]
    fn a_driver_that_goes_leaves_chunks_to_those_who_have_them() {
        let (pending, other) = (Rc::<Pending>::default(), Rc::<Pending>::default());
        let (queue, given_back) = RxShared::without_kernel(&pending, 8, PAGE);
        let of_other = queue.imported(&other);
        let mut spans = told(&queue, 0..3).into_iter().map(|it| it.into_send().unwrap());
        let (before, behind) = (spans.next().unwrap(), spans.next().unwrap());
        let lost = spans.next().unwrap();
        drop(before);
        pending.leave();
        leave_away(&pending);
        assert_eq!(given_back(), [0], "it was left before");
        assert!(!queue.holds_any());
        pending.close();
        queue.outlive_driver();
        drop((queue, pending));
        thread::spawn(move || drop(behind)).join().unwrap();
        assert_eq!(given_back(), [PAGE as u64], "the other driver's NIC has it again");
        assert_eq!(of_other.memory.held.load(Relaxed), 1);
        mem::forget(lost);
    }
}
