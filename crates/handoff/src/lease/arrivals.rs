//! What has arrived and nobody has taken, in the order of the stream.

use std::collections::VecDeque;
use std::rc::Rc;

use io_uring::cqueue;

use super::received::Span;
use super::rx_queue::{self, RxShared};
use crate::ring::Completion;

const QUEUE: &str = "places are of the queue that is received from";

/// A span of an rx queue that is not made yet: where it begins, as the kernel tells it, and how long it is.
#[derive(Clone, Copy)]
struct Place {
    begin: u64,
    len: u32,
}

pub(crate) struct Arrivals {
    /// What the places are of.
    queue: Option<Rc<RxShared>>,
    /// Made into spans only when they are taken, since there are many.
    places: Vec<Place>,
    /// So many of the places were taken.
    taken: usize,
    /// What came behind the places.
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

    /// The spans of the queue that these completions begin with, as far as they are of one request and
    /// within the area; how many that were, and how many bytes.
    pub(crate) fn push_told(&mut self, told: &[Completion]) -> (usize, u64) {
        let area = self.queue.as_ref().expect(QUEUE).memory().len();
        let from = self.places.len();
        self.places.reserve(told.len());
        let (mut count, mut bytes) = (0, 0);
        for (room, completion) in self.places.spare_capacity_mut().iter_mut().zip(told) {
            let Completion { data, result, flags, place } = *completion;
            if data != told[0].data
                || !cqueue::more(flags)
                || !rx_queue::is_within(area, place, result as usize)
            {
                break;
            }
            room.write(Place { begin: place, len: result as u32 });
            count += 1;
            bytes += result as u64;
        }
        // SAFETY: so many were written behind the others.
        unsafe { self.places.set_len(from + count) };
        if !self.spans.is_empty() {
            // Places come before spans, and these don't.
            for place in self.places.split_off(from) {
                // SAFETY: it is taken out of the places, which completions have told of.
                let span = unsafe { self.span(place) };
                self.spans.push_back(span);
            }
        }
        (count, bytes)
    }

    /// # Safety
    ///
    /// The place was told by a completion, and is taken out here for the first time.
    #[inline]
    unsafe fn span(&self, place: Place) -> Span {
        let queue = self.queue.as_ref().expect(QUEUE);
        // SAFETY: as the caller says.
        unsafe { RxShared::span(queue, place.begin, place.len as usize) }
    }

    /// Takes over all that `other` has; `self` is empty.
    pub(crate) fn take_over(&mut self, other: &mut Self) {
        debug_assert!(self.is_empty());
        self.places.clear();
        self.taken = 0;
        // What was allocated is used again.
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
    use crate::lease::Due;

    /// `IORING_CQE_F_MORE`.
    const MORE: u32 = 1 << 1;
    const PAGE: u64 = 4096;

    fn told(chunk: u64, result: i32) -> Completion {
        Completion { data: 7, result, flags: MORE, place: chunk * PAGE }
    }

    fn lengths(arrivals: &mut Arrivals) -> Vec<usize> {
        arrivals.map(|span| span.len()).collect()
    }

    #[test]
    fn the_order_is_that_of_arrival_also_behind_other_spans() {
        let due = Rc::<Due>::default();
        let (queue, given_back) = RxShared::without_kernel(&due, 8, PAGE as usize);
        let mut arrivals = Arrivals::new(Some(Rc::clone(&queue)));
        let mut taken = Arrivals::new(Some(Rc::clone(&queue)));
        queue.arrived(5, 0);
        assert_eq!(arrivals.push_told(&[told(0, 10), told(1, 11)]), (2, 21));
        arrivals.push(Span::nothing());
        assert_eq!(arrivals.push_told(&[told(2, 12)]), (1, 12));
        assert_eq!(arrivals.len(), 4);
        taken.take_over(&mut arrivals);
        assert_eq!(arrivals.push_told(&[told(3, 13), told(4, 14)]), (2, 27));
        assert_eq!(lengths(&mut taken), [10, 11, 0, 12]);
        assert!(taken.is_empty());
        taken.take_over(&mut arrivals);
        assert!(arrivals.is_empty());
        assert_eq!(lengths(&mut taken), [13, 14]);
        queue.publish(-1);
        assert_eq!(given_back(), (0..5).map(|chunk| chunk * PAGE).collect::<Vec<_>>());
    }

    #[test]
    fn only_spans_of_one_request_within_the_area_are_taken_in() {
        let due = Rc::<Due>::default();
        let (queue, _) = RxShared::without_kernel(&due, 8, PAGE as usize);
        let mut arrivals = Arrivals::new(Some(Rc::clone(&queue)));
        queue.arrived(3, 0);
        let beyond = Completion { place: 8 * PAGE - 1, ..told(0, 2) };
        let last = Completion { flags: 0, ..told(1, 0) };
        let of_another = Completion { data: 8, ..told(1, 1) };
        for other in [beyond, last, of_another, told(1, -libc::ENOMEM)] {
            assert_eq!(arrivals.push_told(&[told(0, 1), other]).0, 1, "{other:?}");
        }
        assert_eq!(arrivals.push_told(&[beyond]).0, 0);
        assert_eq!(arrivals.len(), 4);
        queue.arrived(1, 0);
    }
}
