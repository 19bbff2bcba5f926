//! A ring's two queues, with completions in one of three shapes.
//!
//! Zero-copy receive says in the second half of a 32-byte completion where the bytes are. Either all
//! completions of a ring have 32 bytes (wide), or, from Linux 6.18 on, only those that need them (mixed),
//! which then cost more each. A ring that does not receive this way has neither (narrow).
//!
//! Completions of spans are many. So consecutive ones of one request become one completion, with a place for
//! each span.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::slice;

use handoff_sys::ring_setup::{self, CQE_F_BUFFER, CQE_F_MORE};
use handoff_sys::workers;
use io_uring::{IoUring, Parameters, SubmissionQueue, Submitter, cqueue, squeue};

use super::sq_poll::SqPoll;
use super::token::{Stage, Token};

/// Completions taken at a time.
pub(crate) const BATCH: usize = 64;

/// Room for a batch of completions, outside of the ring so that handling them may use it.
pub(crate) type Batch = [MaybeUninit<Completion>; BATCH];

/// The size of the completion queue of a ring that receives without copying, unless another is asked for: each span takes
/// one completion, and a receive that finds no room ends.
const SPANS: u32 = 8192;

/// The most that the kernel has (`IORING_MAX_CQ_ENTRIES`).
const MOST_PLACES: u32 = 1 << 16;

/// A completion of either size, or a run of completions of spans.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) data: u64,
    pub(crate) result: i32,
    pub(crate) flags: u32,
    /// Which of the places taken with it belong to the request; none unless it reports spans.
    pub(crate) spans: Range<u32>,
}

/// A span of an rx queue: its beginning, in the kernel's words, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawSpan {
    pub(crate) begin: u64,
    pub(crate) len: u32,
}

/// Completions of a ring that reports spans, on their way into a batch.
struct Taking<'a> {
    batch: &'a mut [MaybeUninit<Completion>],
    taken: usize,
    /// Room for a place for each completion, and how much there was at first.
    places: slice::IterMut<'a, MaybeUninit<RawSpan>>,
    room: usize,
    /// The request of the last completion, if it reports spans.
    run: u64,
}

impl<'a> Taking<'a> {
    const NONE: u64 = u64::MAX;

    /// For at most so many completions.
    fn new(
        batch: &'a mut [MaybeUninit<Completion>],
        places: &'a mut Vec<RawSpan>,
        most: usize,
    ) -> Self {
        places.clear();
        places.reserve(most);
        let places = places.spare_capacity_mut().iter_mut();
        let room = places.len();
        Self { batch, taken: 0, places, room, run: Self::NONE }
    }

    /// Number of places taken.
    fn told(&self) -> u32 {
        (self.room - self.places.len()) as u32
    }

    fn is_full(&self) -> bool {
        self.taken == self.batch.len()
    }

    #[inline]
    fn take(&mut self, data: u64, result: i32, flags: u32, begin: u64) {
        // Among receives, only that of an rx queue has more to come and names no buffer.
        let tells = flags & (CQE_F_MORE | CQE_F_BUFFER) == CQE_F_MORE && result > 0;
        if tells && data == self.run {
            return self.take_place(begin, result);
        }
        self.end_run();
        let spans = self.told()..self.told();
        self.batch[self.taken].write(Completion { data, result, flags, spans });
        self.taken += 1;
        if tells && Token::from_user_data(data).stage == Stage::Receive {
            self.run = data;
            self.take_place(begin, result);
        }
    }

    #[inline]
    fn take_place(&mut self, begin: u64, len: i32) {
        let room = self.places.next().expect("there is room for all");
        room.write(RawSpan { begin, len: len as u32 });
    }

    fn end_run(&mut self) {
        if self.run != Self::NONE {
            self.run = Self::NONE;
            let told = self.told();
            // SAFETY: a run has a completion, the last one written.
            unsafe { self.batch[self.taken - 1].assume_init_mut() }.spans.end = told;
        }
    }

    /// Number of completions and of places taken.
    fn end(mut self) -> (usize, usize) {
        self.end_run();
        (self.taken, self.told() as usize)
    }
}

/// The wanted shape of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Narrow,
    /// Else wide.
    Mixed,
    Wide,
}

pub(crate) enum Queues {
    Narrow(IoUring),
    Mixed(IoUring),
    Wide(IoUring<squeue::Entry, cqueue::Entry32>),
}

/// Does the same with the ring of any shape.
macro_rules! any {
    ($queues:expr, $io:ident => $act:expr) => {
        match $queues {
            Queues::Narrow($io) | Queues::Mixed($io) => $act,
            Queues::Wide($io) => $act,
        }
    };
}

impl Queues {
    /// Queues for one thread. 0 completions: as many places as the shape needs. There are fewer where the kernel has no
    /// memory for so many: it must lie in one piece, and may count as locked.
    pub(crate) fn new(
        entries: u32,
        completions: u32,
        shape: Shape,
        sq_poll: Option<SqPoll>,
    ) -> io::Result<Self> {
        workers::keep()?;
        // The kernel rounds the entries up, and refuses fewer places than that.
        let least = entries.checked_next_power_of_two().unwrap_or(u32::MAX);
        let wanted = match (completions, shape) {
            (0, Shape::Narrow) => entries.saturating_mul(4),
            (0, _) => entries.saturating_mul(4).max(SPANS),
            _ => completions,
        };
        let wanted = wanted.clamp(least, least.max(MOST_PLACES));
        with_fewer(wanted, least, |places| {
            // The queue's indirection is useless here, and costs a look for each request (Linux 6.6).
            let build =
                |no_indirection| Self::build((entries, places), shape, sq_poll, no_indirection);
            build(true).or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => build(false),
                _ => Err(error),
            })
        })
    }

    fn build(
        sizes: (u32, u32),
        shape: Shape,
        sq_poll: Option<SqPoll>,
        no_indirection: bool,
    ) -> io::Result<Self> {
        match shape {
            Shape::Narrow => uniform(sizes, sq_poll, no_indirection).map(Self::Narrow),
            Shape::Wide => uniform(sizes, sq_poll, no_indirection).map(Self::Wide),
            Shape::Mixed => match mixed(sizes, no_indirection) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    Self::build(sizes, Shape::Wide, sq_poll, no_indirection)
                }
                ring => ring.map(Self::Mixed),
            },
        }
    }

    /// Whether completions report received spans.
    pub(crate) fn tell_of_spans(&self) -> bool {
        !matches!(self, Self::Narrow(_))
    }

    pub(crate) fn params(&self) -> &Parameters {
        any!(self, io => io.params())
    }

    pub(crate) fn submitter(&self) -> Submitter<'_> {
        any!(self, io => io.submitter())
    }

    pub(crate) fn submission(&mut self) -> SubmissionQueue<'_, squeue::Entry> {
        any!(self, io => io.submission())
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        any!(self, io => io.completion().is_empty())
    }

    /// Submits all that is queued, and waits until the kernel has taken it: a thread of the kernel does that when it
    /// comes to it.
    pub(crate) fn hand_over(&mut self) -> io::Result<()> {
        loop {
            match self.submitter().submit() {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if self.submission().is_empty() {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    /// The next completion, of a ring that receives nothing yet.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        let mut room = [MaybeUninit::uninit()];
        self.take(&mut room, &mut Vec::new()).first().cloned()
    }

    /// The next completion; submits queued requests and waits as long as it takes, regardless of signals.
    pub(crate) fn await_next(&mut self) -> io::Result<Completion> {
        loop {
            if let Some(completion) = self.next() {
                return Ok(completion);
            }
            match self.submitter().submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }

    /// Takes completions, and places in exchange for the old ones; fewer completions than there is room for
    /// mean that the queue is empty.
    #[inline(always)]
    pub(crate) fn take<'a>(
        &mut self,
        batch: &'a mut [MaybeUninit<Completion>],
        places: &mut Vec<RawSpan>,
    ) -> &'a [Completion] {
        let (taken, told) = match self {
            Self::Narrow(io) => {
                let mut taken = 0;
                // The batch first: it must not end with a completion in hand.
                for (room, entry) in batch.iter_mut().zip(io.completion()) {
                    room.write(Completion {
                        data: entry.user_data(),
                        result: entry.result(),
                        flags: entry.flags(),
                        spans: 0..0,
                    });
                    taken += 1;
                }
                (taken, 0)
            }
            Self::Mixed(io) => {
                let mut queue = io.completion();
                let mut taking = Taking::new(batch, places, queue.len());
                while !taking.is_full() {
                    let Some(entry) = queue.next() else { break };
                    let begin = match entry.flags() {
                        flags if flags & ring_setup::CQE_F_SKIP != 0 => continue,
                        flags if flags & ring_setup::CQE_F_32 != 0 => {
                            queue.next().map_or(0, |half| half.user_data())
                        }
                        _ => 0,
                    };
                    taking.take(entry.user_data(), entry.result(), entry.flags(), begin);
                }
                taking.end()
            }
            Self::Wide(io) => {
                let mut queue = io.completion();
                let mut taking = Taking::new(batch, places, queue.len());
                while !taking.is_full() {
                    let Some(entry) = queue.next() else { break };
                    let begin = entry.big_cqe()[0];
                    taking.take(entry.user_data(), entry.result(), entry.flags(), begin);
                }
                taking.end()
            }
        };
        // SAFETY: so many were written.
        unsafe {
            places.set_len(told);
            slice::from_raw_parts(batch.as_ptr().cast(), taken)
        }
    }
}

impl AsRawFd for Queues {
    fn as_raw_fd(&self) -> RawFd {
        any!(self, io => io.as_raw_fd())
    }
}

/// Builds something with as many places as there is memory for: `wanted`, or fewer, but `least`.
fn with_fewer<T>(
    wanted: u32,
    least: u32,
    mut build: impl FnMut(u32) -> io::Result<T>,
) -> io::Result<T> {
    let mut places = wanted;
    loop {
        match build(places) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && places > least => {
                tracing::info!(places, "no memory for so many completions");
                places = (places / 2).max(least);
            }
            built => return built,
        }
    }
}

/// Queues whose completions are all of one size, which the type says.
fn uniform<C: cqueue::EntryMarker>(
    (entries, completions): (u32, u32),
    sq_poll: Option<SqPoll>,
    no_indirection: bool,
) -> io::Result<IoUring<squeue::Entry, C>> {
    let mut builder = IoUring::<squeue::Entry, C>::builder();
    match sq_poll {
        Some(sq_poll) => sq_poll.set_up(&mut builder),
        None => {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        }
    }
    builder.setup_submit_all().setup_clamp().setup_cqsize(completions);
    if no_indirection {
        builder.setup_no_sqarray();
    }
    builder.build(entries)
}

/// The same with completions of both sizes; a long one takes two places.
fn mixed((entries, completions): (u32, u32), no_indirection: bool) -> io::Result<IoUring> {
    let flags = ring_setup::SINGLE_ISSUER
        | ring_setup::DEFER_TASKRUN
        | ring_setup::TASKRUN_FLAG
        | ring_setup::SUBMIT_ALL
        | ring_setup::CLAMP;
    let indirection = if no_indirection { ring_setup::NO_SQARRAY } else { 0 };
    ring_setup::mixed(entries, completions.saturating_mul(2), flags | indirection)
}

#[cfg(test)]
mod tests {
    use io_uring::opcode;

    use super::super::skip;
    use super::*;

    /// A thread that waits, and gets signals all the time.
    #[test]
    fn signals_end_no_wait() {
        use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

        extern "C" fn nothing(_: libc::c_int) {}

        let test = "ring::queues::tests::signals_end_no_wait";
        let Some(mut queues) = skip::told(Queues::new(8, 0, Shape::Narrow, None), test) else {
            return;
        };
        // SAFETY: the handler does nothing; all-zero bytes are no flags, so that calls are interrupted, and
        // no blocked signals.
        let waiting = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
            libc::pthread_self()
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    // SAFETY: the thread outlives the scope.
                    unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) };
                }
            });
            let time = io_uring::types::Timespec::new().nsec(20_000_000);
            let entry = opcode::Timeout::new(&raw const time).build();
            // SAFETY: the time outlives the request, which is waited for.
            unsafe { queues.submission().push(&entry) }.unwrap();
            let waited = queues.await_next();
            over.store(true, SeqCst);
            assert_eq!(waited.unwrap().result, -libc::ETIME);
        });
    }

    /// Posts what a kernel would, without one.
    #[test]
    fn completions_that_tell_of_spans_are_taken_over_as_one_for_each_run() {
        const MORE: u32 = 1 << 1;
        let of = |index, stage| {
            Token { key: super::super::Key { index, generation: 3 }, stage }.to_user_data()
        };
        let (one, other, send) =
            (of(1, Stage::Receive), of(2, Stage::Receive), of(1, Stage::Attempt(0)));
        let posted = [
            (send, 5, MORE, 0),
            (one, 10, MORE, 100),
            (one, 11, MORE, 200),
            (other, 12, MORE, 300),
            (one, 13, MORE, 400),
            (one, -libc::ENOMEM, 0, 0),
            // From a pool, with a chunk; an empty datagram, without.
            (one, 14, MORE | 1, 0),
            (one, 0, MORE, 0),
            (send, 6, 0, 0),
            (other, 15, MORE, 500),
            (other, 16, MORE, 600),
            (other, 0, 0, 0),
        ];
        for room in [2, 3, 10, 64] {
            let mut batch: Batch = [const { MaybeUninit::uninit() }; BATCH];
            let (mut places, mut left) = (Vec::new(), &posted[..]);
            let (mut told, mut rest) = (Vec::new(), Vec::new());
            while !left.is_empty() {
                let mut taking = Taking::new(&mut batch[..room], &mut places, left.len());
                while !taking.is_full()
                    && let Some((&(data, result, flags, begin), behind)) = left.split_first()
                {
                    taking.take(data, result, flags, begin);
                    left = behind;
                }
                let (taken, spans) = taking.end();
                // SAFETY: so many were written.
                let taken: &[Completion] = unsafe {
                    places.set_len(spans);
                    slice::from_raw_parts(batch.as_ptr().cast(), taken)
                };
                for completion in taken {
                    let Range { start, end } = completion.spans;
                    for place in &places[start as usize..end as usize] {
                        told.push((completion.data, place.begin, place.len));
                    }
                    if start == end {
                        rest.push((completion.data, completion.result));
                    }
                }
                assert_eq!(taken.iter().map(|it| it.spans.len()).sum::<usize>(), spans);
            }
            let spans = [
                (one, 100, 10),
                (one, 200, 11),
                (other, 300, 12),
                (one, 400, 13),
                (other, 500, 15),
                (other, 600, 16),
            ];
            assert_eq!(told, spans, "room for {room}");
            let others =
                [(send, 5), (one, -libc::ENOMEM), (one, 14), (one, 0), (send, 6), (other, 0)];
            assert_eq!(rest, others, "room for {room}");
        }
    }

    #[test]
    fn there_are_as_many_places_for_completions_as_were_asked_for() {
        for shape in [Shape::Narrow, Shape::Mixed, Shape::Wide] {
            let test =
                "ring::queues::tests::there_are_as_many_places_for_completions_as_were_asked_for";
            let places = |asked| {
                let queues = skip::told(Queues::new(5, asked, shape, None), test)?;
                let places = queues.params().cq_entries();
                // A long one takes two.
                Some(if matches!(queues, Queues::Mixed(_)) { places / 2 } else { places })
            };
            let Some(least) = places(0) else { return };
            assert_eq!(least, if shape == Shape::Narrow { 32 } else { SPANS });
            // Fewer than entries, and more than there are.
            assert_eq!([1, 1000].map(places), [Some(8), Some(1024)]);
            // The kernel may have no memory in one piece for its limit.
            assert!(places(u32::MAX) > Some(1024));
        }
    }

    #[test]
    fn there_are_fewer_places_where_memory_is_short() {
        let built = |most: u32, wanted, least| {
            with_fewer(wanted, least, |places| match places {
                _ if places <= most => Ok(places),
                _ => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            })
        };
        assert_eq!(built(100, 64, 8).unwrap(), 64);
        assert_eq!(built(100, 1000, 8).unwrap(), 62);
        assert_eq!(built(8, 1000, 8).unwrap(), 8);
        assert_eq!(built(7, 1000, 8).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        let mut tries = 0;
        let other = with_fewer(64, 8, |_| {
            tries += 1;
            Err::<(), _>(io::Error::from_raw_os_error(libc::EPERM))
        });
        assert_eq!((other.unwrap_err().raw_os_error(), tries), (Some(libc::EPERM), 1));
    }

    /// Posts no completion of 32 bytes, but the queues wrap many times.
    #[test]
    fn completions_of_every_shape_come_in_order() {
        for shape in [Shape::Narrow, Shape::Mixed, Shape::Wide] {
            let test = "ring::queues::tests::completions_of_every_shape_come_in_order";
            let Some(mut queues) = skip::told(Queues::new(8, 0, shape, None), test) else { return };
            assert_eq!(queues.tell_of_spans(), shape != Shape::Narrow);
            let mut places = Vec::new();
            let mut batch: Batch = [const { MaybeUninit::uninit() }; BATCH];
            for round in 0..10_000u64 {
                for entry in 0..5 {
                    let entry = opcode::Nop::new().build().user_data(round * 5 + entry);
                    // SAFETY: the entry names no memory.
                    unsafe { queues.submission().push(&entry) }.unwrap();
                }
                queues.submitter().submit_and_wait(5).unwrap();
                let data: Vec<_> =
                    queues.take(&mut batch, &mut places).iter().map(|it| it.data).collect();
                assert_eq!(data, (round * 5..round * 5 + 5).collect::<Vec<_>>());
                assert!(queues.is_empty());
            }
        }
    }
}
