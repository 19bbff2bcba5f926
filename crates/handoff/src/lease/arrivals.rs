//! Arrived spans that nobody has taken, in the order of the stream.

use std::collections::VecDeque;
use std::rc::Rc;

use super::received::Span;
use super::rx_shared::RxShared;
use super::span_ref::SpanRef;
use crate::ring::RawSpan;

const QUEUE: &str = "places are of the queue that is received from";

pub(crate) struct Arrivals {
    /// What the places are of.
    queue: Option<Rc<RxShared>>,
    /// Made into spans only when they are taken, since there are many.
    places: Vec<RawSpan>,
    /// Places already taken.
    taken: usize,
    /// What arrived behind the places.
    spans: VecDeque<Span>,
}

impl Arrivals {
    pub(crate) fn new(queue: Option<Rc<RxShared>>) -> Self {
        Self { queue, places: Vec::new(), taken: 0, spans: VecDeque::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.taken + self.spans.len()
    }

    pub(crate) fn push(&mut self, span: Span) {
        self.spans.push_back(span);
    }

    /// Adds spans of the queue from a completion, as far as they lie within its memory; returns their number
    /// and their bytes.
    pub(crate) fn push_told(&mut self, told: &[RawSpan]) -> (usize, u64) {
        let queue = self.queue.as_ref().expect(QUEUE);
        let (mut spans, mut bytes) = (0, 0);
        for place in told {
            if !queue.has(place.begin, place.len as usize) {
                break;
            }
            spans += 1;
            bytes += u64::from(place.len);
        }
        let told = &told[..spans];
        if self.spans.is_empty() {
            self.places.extend_from_slice(told);
        } else {
            // Places come before spans, and these do not.
            for place in told {
                // SAFETY: a completion has told of the place, which is put down nowhere else.
                let span = unsafe { self.span(*place) };
                self.spans.push_back(span);
            }
        }
        (spans, bytes)
    }

    /// # Safety
    ///
    /// The place was told by a completion, and is taken out here for the first time.
    #[inline]
    unsafe fn span(&self, place: RawSpan) -> Span {
        let queue = self.queue.as_ref().expect(QUEUE);
        // SAFETY: as the caller says.
        unsafe { RxShared::span(queue, place.begin, place.len as usize) }
    }

    /// Lends what is there to a visitor, one span after another. If the visitor panics, later spans stay.
    #[inline]
    pub(crate) fn visit(&mut self, visitor: &mut impl FnMut(SpanRef<'_>)) {
        if let Some(queue) = &self.queue {
            // Looking at the places for each span would cost as much as the rest.
            for place in self.places.get(self.taken..).unwrap_or_default() {
                self.taken += 1;
                // SAFETY: it counts as taken, and completions have told of all places.
                visitor(unsafe { RxShared::span_ref(queue, place.begin, place.len as usize) });
            }
        }
        while let Some(span) = self.spans.pop_front() {
            visitor(SpanRef::of_span(span));
        }
    }

    /// Takes over everything from `other`; `self` is empty.
    pub(crate) fn take_over(&mut self, other: &mut Self) {
        debug_assert!(self.is_empty());
        self.places.clear();
        self.taken = 0;
        // Uses the allocation again.
        std::mem::swap(self, other);
    }
}

impl Iterator for Arrivals {
    type Item = Span;

    #[inline]
    fn next(&mut self) -> Option<Span> {
        match self.places.get(self.taken) {
            Some(&place) => {
                self.taken += 1;
                // SAFETY: it counts as taken, and completions have told of all places.
                Some(unsafe { self.span(place) })
            }
            None => self.spans.pop_front(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Pending;

    const PAGE: u64 = 4096;

    fn told(chunk: u64, len: u32) -> RawSpan {
        RawSpan { begin: chunk * PAGE, len }
    }

    fn lengths(arrivals: &mut Arrivals) -> Vec<usize> {
        arrivals.map(|span| span.len()).collect()
    }

    fn visited(arrivals: &mut Arrivals) -> Vec<usize> {
        let mut lengths = Vec::new();
        arrivals.visit(&mut |span: SpanRef<'_>| lengths.push(span.len()));
        lengths
    }

    #[test]
    fn the_order_is_that_of_arrival_also_behind_other_spans() {
        for take in [lengths, visited] {
            let pending = Rc::<Pending>::default();
            let (queue, given_back) = RxShared::without_kernel(&pending, 8, PAGE as usize);
            let mut arrivals = Arrivals::new(Some(Rc::clone(&queue)));
            let mut taken = Arrivals::new(Some(Rc::clone(&queue)));
            queue.arrived(5, 0, -1);
            assert_eq!(arrivals.push_told(&[told(0, 10), told(1, 11)]), (2, 21));
            arrivals.push(Span::nothing());
            assert_eq!(arrivals.push_told(&[told(2, 12)]), (1, 12));
            assert_eq!(arrivals.len(), 4);
            taken.take_over(&mut arrivals);
            assert_eq!(arrivals.push_told(&[told(3, 13), told(4, 14)]), (2, 27));
            assert_eq!(take(&mut taken), [10, 11, 0, 12]);
            assert!(taken.is_empty());
            taken.take_over(&mut arrivals);
            assert!(arrivals.is_empty());
            assert_eq!(take(&mut taken), [13, 14]);
            queue.publish(-1);
            assert_eq!(given_back(), (0..5).map(|chunk| chunk * PAGE).collect::<Vec<_>>());
        }
    }

    #[test]
    fn only_spans_within_the_area_are_taken_in() {
        let pending = Rc::<Pending>::default();
        let (queue, _) = RxShared::without_kernel(&pending, 8, PAGE as usize);
        let mut arrivals = Arrivals::new(Some(Rc::clone(&queue)));
        queue.arrived(2, 0, -1);
        let beyond = RawSpan { begin: 8 * PAGE - 1, len: 2 };
        for outside in [beyond, told(1, u32::MAX), told(8, 1)] {
            assert_eq!(arrivals.push_told(&[outside, told(0, 1)]), (0, 0), "{outside:?}");
        }
        assert_eq!(arrivals.push_told(&[told(0, 1), beyond, told(1, 1)]), (1, 1));
        assert_eq!(arrivals.push_told(&[RawSpan { begin: 8 * PAGE - 1, len: 1 }]), (1, 1));
        assert_eq!(lengths(&mut arrivals), [1, 1]);
    }

    #[test]
    fn a_visitor_that_panics_has_had_its_span_and_what_is_kept_goes_back_later() {
        let pending = Rc::<Pending>::default();
        let (queue, given_back) = RxShared::without_kernel(&pending, 8, PAGE as usize);
        let mut arrivals = Arrivals::new(Some(Rc::clone(&queue)));
        queue.arrived(4, 0, -1);
        arrivals.push_told(&[told(0, 10), told(1, 11), told(2, 12), told(3, 13)]);
        let mut kept = Vec::new();
        let panics = std::panic::AssertUnwindSafe(|| {
            arrivals.visit(&mut |span: SpanRef<'_>| match span.len() {
                10 => kept.push(span.keep()),
                11 => {}
                _ => panic!("a visitor's"),
            });
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        queue.publish(-1);
        assert_eq!(given_back(), [PAGE, 2 * PAGE]);
        assert_eq!(visited(&mut arrivals), [13]);
        queue.publish(-1);
        assert_eq!(given_back(), [3 * PAGE]);
        assert_eq!((kept[0].len(), queue.holds_any()), (10, true));
        drop(kept);
        queue.publish(-1);
        assert_eq!((given_back(), queue.holds_any()), (vec![0], false));
    }
}
