//! A received span during a visit: lent from the receiver, so that nothing is counted or kept for it.
//!
//! Contracts:
//! - the bytes stay as long as the reference, which cannot leave the visit;
//! - what you do not keep is given back when the reference goes, also by a panic.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use super::datagram::Datagram;
use super::received::Span;
use super::rx_shared::RxShared;

/// Received bytes during a visit: see [`Receiver::visit`](crate::Receiver::visit). Dropping it gives the chunk
/// back.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::Receiver) -> Result<(), Box<dyn std::error::Error>> {
/// let mut kept = Vec::new();
/// receiver.spans_there().await?;
/// receiver.visit(|span| {
///     if span.starts_with(b"keep") {
///         kept.push(span.keep());
///     }
/// });
/// # Ok(()) }
/// ```
pub struct SpanRef<'a>(Visited<'a>);

enum Visited<'a> {
    Placed(Placed<'a>),
    /// Was made before.
    Made(Span),
}

/// In an area, and not made a span yet.
struct Placed<'a> {
    queue: &'a Rc<RxShared>,
    /// In the kernel's words.
    place: u64,
    start: NonNull<u8>,
    len: usize,
}

impl Drop for Placed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.queue.give_back(self.place);
    }
}

impl Placed<'_> {
    fn keep(self) -> Span {
        let Self { queue, place, start, len } = self;
        // The span gives it back.
        std::mem::forget(self);
        // SAFETY: the reference had these bytes alone, and is no more.
        unsafe { Span::of_queue(queue, place, start, len) }
    }
}

impl<'a> SpanRef<'a> {
    /// # Safety
    ///
    /// The bytes are initialised and at this place of the queue's memory, and are handed out once before
    /// they are given back.
    #[inline]
    pub(crate) unsafe fn of_queue(
        queue: &'a Rc<RxShared>,
        place: u64,
        start: NonNull<u8>,
        len: usize,
    ) -> Self {
        Self(Visited::Placed(Placed { queue, place, start, len }))
    }

    /// Made from a span that exists already.
    pub(crate) fn of_span(span: Span) -> Self {
        Self(Visited::Made(span))
    }

    /// As [`Span::datagram`].
    pub fn datagram(&self) -> Option<Datagram> {
        match &self.0 {
            Visited::Placed(_) => None,
            Visited::Made(span) => span.datagram(),
        }
    }

    /// Keeps the bytes beyond the visit.
    pub fn keep(self) -> Span {
        match self.0 {
            Visited::Placed(placed) => placed.keep(),
            Visited::Made(span) => span,
        }
    }
}

impl RxShared {
    /// The span that a completion has reported, lent.
    ///
    /// # Safety
    ///
    /// As for [`span`](Self::span).
    #[inline]
    pub(crate) unsafe fn span_ref(this: &Rc<Self>, place: u64, len: usize) -> SpanRef<'_> {
        // SAFETY: as in `span`.
        unsafe {
            let start = this.memory.address(place, len);
            SpanRef::of_queue(this, place, start, len)
        }
    }
}

impl Deref for SpanRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the reference has initialised bytes alone by the contract of its maker, and the queue
            // keeps their memory.
            Visited::Placed(placed) => unsafe {
                std::slice::from_raw_parts(placed.start.as_ptr(), placed.len)
            },
            Visited::Made(span) => span,
        }
    }
}

impl fmt::Debug for SpanRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanRef").field("len", &self.len()).finish_non_exhaustive()
    }
}
