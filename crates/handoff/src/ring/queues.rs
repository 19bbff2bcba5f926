//! A ring's two queues, with completions in one of three shapes.
//!
//! Zero-copy receive tells in the second half of a completion of 32 bytes where the bytes are. All of a
//! ring are so long (wide), or, from Linux 6.18 on, only those that need it (mixed), which costs more for
//! each of them. A ring that doesn't receive so has neither (narrow).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};

use handoff_sys::ring_setup;
use io_uring::{IoUring, Parameters, SubmissionQueue, Submitter, cqueue, squeue};

/// Completions taken over at a time.
pub(crate) const BATCH: usize = 64;

/// Room for a batch of completions, outside of the ring so that handling them may use it.
pub(crate) type Batch = [MaybeUninit<Completion>; BATCH];

/// The completion queue of a ring that receives without copying has room for so many at least: each
/// span is one, and a receive that finds no room ends.
const SPANS: u32 = 8192;

/// A completion of either size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) data: u64,
    pub(crate) result: i32,
    pub(crate) flags: u32,
    /// Where received bytes are, in a completion that tells it.
    pub(crate) place: u64,
}

impl Completion {
    fn new(entry: &cqueue::Entry, place: u64) -> Self {
        Self { data: entry.user_data(), result: entry.result(), flags: entry.flags(), place }
    }
}

/// The shape of completions that is wanted.
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
    /// Queues for one thread.
    pub(crate) fn new(entries: u32, shape: Shape) -> io::Result<Self> {
        // The queue's indirection is of no use to us, and costs a look for each request (Linux 6.6).
        Self::build(entries, shape, true).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Self::build(entries, shape, false),
            _ => Err(error),
        })
    }

    fn build(entries: u32, shape: Shape, no_indirection: bool) -> io::Result<Self> {
        let completions = entries.saturating_mul(4);
        let many = completions.max(SPANS);
        match shape {
            Shape::Narrow => uniform(entries, completions, no_indirection).map(Self::Narrow),
            Shape::Wide => uniform(entries, many, no_indirection).map(Self::Wide),
            Shape::Mixed => match mixed(entries, many, no_indirection) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    Self::build(entries, Shape::Wide, no_indirection)
                }
                ring => ring.map(Self::Mixed),
            },
        }
    }

    /// Whether completions tell of received spans.
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

    /// The next completion.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        let mut room = [MaybeUninit::uninit()];
        self.take(&mut room).first().copied()
    }

    /// The next completion, submitting what is queued and waiting as long as it takes, whatever signals
    /// come meanwhile.
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

    /// Takes completions over; fewer than there is room for means that the queue is empty.
    #[inline(always)]
    pub(crate) fn take<'a>(
        &mut self,
        batch: &'a mut [MaybeUninit<Completion>],
    ) -> &'a [Completion] {
        let mut taken = 0;
        match self {
            Self::Narrow(io) => {
                // The batch first: it must not end with a completion in hand.
                for (room, entry) in batch.iter_mut().zip(io.completion()) {
                    room.write(Completion::new(&entry, 0));
                    taken += 1;
                }
            }
            Self::Mixed(io) => {
                let mut queue = io.completion();
                while taken < batch.len() {
                    let Some(entry) = queue.next() else { break };
                    let place = match entry.flags() {
                        flags if flags & ring_setup::CQE_F_SKIP != 0 => continue,
                        flags if flags & ring_setup::CQE_F_32 != 0 => {
                            queue.next().map_or(0, |half| half.user_data())
                        }
                        _ => 0,
                    };
                    batch[taken].write(Completion::new(&entry, place));
                    taken += 1;
                }
            }
            Self::Wide(io) => {
                for (room, entry) in batch.iter_mut().zip(io.completion()) {
                    let place = entry.big_cqe()[0];
                    room.write(Completion::new(&entry.into(), place));
                    taken += 1;
                }
            }
        }
        // SAFETY: the first `taken` were written above.
        unsafe { std::slice::from_raw_parts(batch.as_ptr().cast(), taken) }
    }
}

impl AsRawFd for Queues {
    fn as_raw_fd(&self) -> RawFd {
        any!(self, io => io.as_raw_fd())
    }
}

/// Queues whose completions are all of one size, which the type says.
fn uniform<C: cqueue::EntryMarker>(
    entries: u32,
    completions: u32,
    no_indirection: bool,
) -> io::Result<IoUring<squeue::Entry, C>> {
    let mut builder = IoUring::<squeue::Entry, C>::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_clamp()
        .setup_cqsize(completions);
    if no_indirection {
        builder.setup_no_sqarray();
    }
    builder.build(entries)
}

/// The same with completions of both sizes; a long one takes two places.
fn mixed(entries: u32, completions: u32, no_indirection: bool) -> io::Result<IoUring> {
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

    /// A thread that waits, and is signalled all the time.
    #[test]
    fn signals_end_no_wait() {
        use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

        extern "C" fn nothing(_: libc::c_int) {}

        let test = "queues::tests::signals_end_no_wait";
        let Some(mut queues) = skip::told(Queues::new(8, Shape::Narrow), test) else { return };
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

    /// Posts no completion of 32 bytes, but the queues turn over many times.
    #[test]
    fn completions_of_every_shape_come_in_order() {
        for shape in [Shape::Narrow, Shape::Mixed, Shape::Wide] {
            let test = "queues::tests::completions_of_every_shape_come_in_order";
            let Some(mut queues) = skip::told(Queues::new(8, shape), test) else { return };
            assert_eq!(queues.tell_of_spans(), shape != Shape::Narrow);
            let mut batch: Batch = [const { MaybeUninit::uninit() }; BATCH];
            for round in 0..10_000u64 {
                for entry in 0..5 {
                    let entry = opcode::Nop::new().build().user_data(round * 5 + entry);
                    // SAFETY: the entry names no memory.
                    unsafe { queues.submission().push(&entry) }.unwrap();
                }
                queues.submitter().submit_and_wait(5).unwrap();
                let data: Vec<_> = queues.take(&mut batch).iter().map(|it| it.data).collect();
                assert_eq!(data, (round * 5..round * 5 + 5).collect::<Vec<_>>());
                assert!(queues.is_empty());
            }
        }
    }
}
