//! The io_uring instance: submission, completion, and the tables of registered buffers and files.
//!
//! Minimum kernel: 6.1 (`IORING_SETUP_DEFER_TASKRUN`). Capability: none, unless
//! `kernel.io_uring_disabled` or a seccomp filter forbids it. The ring is used by one thread
//! (`IORING_SETUP_SINGLE_ISSUER`), and completions are posted only while that thread is in the
//! kernel for them, so nothing here is shared. Where a thread of the kernel polls the queue
//! ([`SqPoll`]), that thread takes requests and posts completions at any time.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use handoff_sys::ring_fd::RingFd;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, squeue};
use rustix::event::{EventfdFlags, eventfd};

use super::features::Features;
use super::queues::{Batch, Completion, Queues, RawSpan, Shape};
use super::slots::{self, Files, Slots};
use super::sq_poll::{SqPoll, Staged};
use super::until::Until;

/// The most bytes of one request; the kernel takes no more than 2 GiB at once.
pub(crate) const MAX_REQUEST: usize = 1 << 30;

/// The most registered buffers (`IORING_MAX_REG_BUFFERS`).
const MAX_BUFFERS: u32 = 1 << 14;

/// After so many requests submitted with [`Until::Soon`], deferred work runs all the same. Running it costs
/// a tenth of a single zero-copy send.
const DEFERRED_MOST: u32 = 32;

/// How long the kernel's thread may take to come to the queue of a ring. It must be scheduled for that.
const THREAD_COMES: Duration = Duration::from_secs(10);

pub(crate) struct Ring {
    /// Before the ring itself, which stays open as long as this.
    ring_fd: Option<RingFd>,
    pub(crate) io: Queues,
    /// For foreign loops; see [`event`](Self::event).
    event: OwnedFd,
    event_watched: bool,
    /// Distinguishes rings where buffers are registered; from 1.
    pub(crate) id: u32,
    /// Whether the kernel says if it copied (Linux 6.2).
    pub(crate) reports_usage: bool,
    /// Whether SENDMSG_ZC takes registered buffers (Linux 6.15).
    pub(crate) vectored_registered: bool,
    /// Whether RECV takes registered buffers (Linux 7.2).
    pub(crate) receives_registered: bool,
    /// Whether SEND takes registered buffers (Linux 7.2).
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "other sends lend"))]
    pub(crate) sends_registered: bool,
    /// Whether READV and WRITEV take registered buffers (Linux 6.15).
    pub(crate) writes_vectors_registered: bool,
    /// Whether it has FTRUNCATE (Linux 6.9).
    pub(crate) truncates: bool,
    pub(crate) buffers: Slots,
    pub(crate) files: Files,
    /// Requests submitted since deferred work last ran.
    since_work: u32,
    /// What the kernel's thread is not to see yet, where one polls the queue.
    staged: Option<Staged>,
    /// Calls of `io_uring_enter(2)` so far.
    pub(crate) calls: Cell<u64>,
    /// Queued requests of chains that are expected not to wait.
    chained: u32,
}

impl Ring {
    /// A ring for the calling thread, with so many entries and places for completions (0: what the shape needs), and
    /// room for so many files in use and parked connections.
    pub(crate) fn new(
        (entries, completions): (u32, u32),
        buffers: u32,
        (files, parked): (u32, u32),
        shape: Shape,
        sq_poll: Option<SqPoll>,
    ) -> io::Result<Self> {
        static RINGS: AtomicU32 = AtomicU32::new(1);
        let mut io = Queues::new(entries, completions, shape, sq_poll)?;
        if !io.params().is_feature_nodrop() || !io.params().is_feature_ext_arg() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        // The kernel refuses larger tables, and empty ones.
        let buffers = buffers.min(MAX_BUFFERS);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or(u32::MAX, |limit| limit.try_into().unwrap_or(u32::MAX));
        let files = files.min(limit);
        if buffers > 0 {
            io.submitter().register_buffers_sparse(buffers)?;
        }
        let slots = slots::register_files(&mut io, files.saturating_add(parked).min(limit))?;
        // SAFETY: the descriptor is the ring's, which is open.
        let fd = unsafe { BorrowedFd::borrow_raw(io.as_raw_fd()) };
        // Saves the lookup of the ring's descriptor at each call (Linux 5.18).
        let ring_fd = RingFd::register(fd)
            .inspect_err(|error| {
                tracing::debug!(%error, "the ring's own descriptor is not registered");
            })
            .ok();
        let features = Features::try_out(&mut io)?;
        Ok(Self {
            ring_fd,
            staged: sq_poll.map(|_| Staged::new(io.params().sq_entries() as usize)),
            calls: Cell::new(0),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            event_watched: false,
            io,
            id: RINGS.fetch_add(1, Relaxed),
            reports_usage: features.reports_usage,
            vectored_registered: features.vectored_registered,
            receives_registered: features.receives_registered,
            sends_registered: features.sends_registered,
            writes_vectors_registered: features.writes_vectors_registered,
            truncates: features.truncates,
            buffers: Slots::new(buffers),
            files: Files::new(slots, files),
            since_work: 0,
            chained: 0,
        })
    }

    /// The most requests that one submission takes.
    pub(crate) fn entries(&self) -> usize {
        self.io.params().sq_entries() as usize
    }

    /// Entries pushed and not submitted.
    pub(crate) fn unsubmitted(&mut self) -> usize {
        match &self.staged {
            Some(staged) => staged.len(),
            None => self.io.submission().len(),
        }
    }

    /// Whether a thread of the kernel polls the queue.
    pub(crate) fn is_polled(&self) -> bool {
        self.staged.is_some()
    }

    /// Makes room to push `entries`, and submits queued requests if necessary. Requests that belong
    /// together get their room at once, so that no submission comes between them.
    #[inline]
    pub(crate) fn make_room(&mut self, entries: usize) -> io::Result<()> {
        if self.has_room(entries) { Ok(()) } else { self.submit_for_room(entries) }
    }

    #[inline]
    fn has_room(&mut self, entries: usize) -> bool {
        if let Some(staged) = &self.staged {
            return staged.room() >= entries;
        }
        let queue = self.io.submission();
        queue.capacity() - queue.len() >= entries
    }

    #[cold]
    fn submit_for_room(&mut self, entries: usize) -> io::Result<()> {
        self.enter(Until::Now)?;
        match self.has_room(entries) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        }
    }

    /// Queues a request; the caller has made room.
    ///
    /// # Safety
    ///
    /// Everything that the entry points to must stay valid and, where the request says so, untouched until
    /// its last completion.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) {
        if let Some(staged) = &mut self.staged {
            return staged.push(entry.clone());
        }
        // SAFETY: the caller's duty.
        unsafe { self.io.submission().push(entry) }.expect("room was made");
    }

    /// Queues requests as long as there are some, and room.
    ///
    /// # Safety
    ///
    /// As of [`push`](Self::push), for each.
    #[inline(always)]
    pub(crate) unsafe fn push_all(&mut self, mut next: impl FnMut() -> Option<squeue::Entry>) {
        if let Some(staged) = &mut self.staged {
            while staged.room() > 0
                && let Some(entry) = next()
            {
                staged.push(entry);
            }
            return;
        }
        let mut queue = self.io.submission();
        while !queue.is_full()
            && let Some(entry) = next()
        {
            // SAFETY: the caller's duty.
            unsafe { queue.push(&entry) }.expect("there is room");
        }
    }

    /// Submits queued requests. When this returns, the kernel has taken them; it may not have begun with them.
    pub(crate) fn hand_over(&mut self) -> io::Result<()> {
        self.enter(Until::Now)?;
        let deadline = Instant::now() + THREAD_COMES;
        while self.is_polled() && !self.io.submission().is_empty() {
            self.wake_thread()?;
            check_time(deadline)?;
        }
        Ok(())
    }

    /// A descriptor that is readable when there is work or a completion. The ring's own descriptor does not
    /// serve: if the kernel defers work to this thread, it wakes nobody who polls that. `more` says whether there
    /// is work now.
    pub(crate) fn event(&mut self, more: bool) -> RawFd {
        if !self.event_watched {
            match self.io.submitter().register_eventfd(self.event.as_raw_fd()) {
                Ok(()) => self.event_watched = true,
                Err(error) => tracing::warn!(%error, "foreign loops are not told of this ring"),
            }
            // Earlier work and completions are looked at.
            self.signal();
        } else if more {
            self.signal();
        }
        self.event.as_raw_fd()
    }

    /// That descriptor, as it is.
    pub(crate) fn event_descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    fn signal(&self) {
        // The only failure is a full counter, which is readable as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Whether somebody may wait for the event.
    #[inline]
    pub(crate) fn event_watched(&self) -> bool {
        self.event_watched
    }

    /// Clears the event after completions were taken, unless there is `more` to do.
    pub(crate) fn settle_event(&mut self, more: bool) {
        // EAGAIN: it was not set.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        let more = more || self.unsubmitted() > 0 || self.has_work();
        if more || !self.io.is_empty() {
            self.signal();
        }
    }

    /// So many queued requests are links of chains that are expected to wait for nothing else.
    pub(crate) fn expect_to_go_through(&mut self, chained: usize) {
        if self.is_polled() {
            // They go through where they are taken.
            return;
        }
        self.chained += chained as u32;
    }

    /// Submits queued requests, runs the kernel's deferred work, and waits as told.
    #[inline(always)]
    pub(crate) fn enter(&mut self, until: Until) -> io::Result<()> {
        let waits = !matches!(until, Until::Now | Until::Soon);
        if self.is_polled() {
            return self.enter_polled(until, waits);
        }
        if self.chained > 0 {
            self.go_through()?;
            if !waits || !self.io.is_empty() {
                return Ok(());
            }
        }
        let queue = self.io.submission();
        let (submit, taskrun, overflown) =
            (queue.len() as u32, queue.taskrun(), queue.cq_overflow());
        drop(queue);
        if submit == 0 && !waits && !taskrun && !overflown {
            return Ok(());
        }
        self.since_work += submit;
        // Deferred work runs only with GETEVENTS, which also brings over completions that did not fit into
        // the queue.
        let leave_work =
            until == Until::Soon && submit > 0 && self.since_work < DEFERRED_MOST && !overflown;
        let flags = if leave_work {
            EnterFlags::empty()
        } else {
            self.since_work = 0;
            EnterFlags::GETEVENTS
        };
        let want = u32::from(waits);
        match until {
            Until::OneOr(time) => self.call_for_at_most(submit, want, flags, time),
            // SAFETY: there is no argument.
            _ => tolerated(unsafe { self.call::<libc::sigset_t>(submit, want, flags, None) }),
        }
    }

    /// Publishes staged requests, and calls only if the kernel's thread sleeps, or there is something to wait for.
    fn enter_polled(&mut self, until: Until, waits: bool) -> io::Result<()> {
        self.publish()?;
        let queue = self.io.submission();
        // With the barrier between what was published and the look: the thread looks again after it has said that it
        // sleeps.
        let (sleeps, overflown) = (queue.need_wakeup(), queue.cq_overflow());
        drop(queue);
        let waits = waits && self.io.is_empty();
        if !sleeps && !waits && !overflown {
            return Ok(());
        }
        let wakeup = if sleeps { EnterFlags::SQ_WAKEUP } else { EnterFlags::empty() };
        if !waits && !overflown {
            // SAFETY: there is no argument.
            return tolerated(unsafe { self.call::<libc::sigset_t>(0, 0, wakeup, None) });
        }
        let (flags, want) = (wakeup | EnterFlags::GETEVENTS, u32::from(waits));
        match until {
            Until::OneOr(time) => self.call_for_at_most(0, want, flags, time),
            // SAFETY: there is no argument.
            _ => tolerated(unsafe { self.call::<libc::sigset_t>(0, want, flags, None) }),
        }
    }

    /// Makes staged requests visible to the kernel's thread, all at once; waits for room for that.
    fn publish(&mut self) -> io::Result<()> {
        let mut deadline = None;
        loop {
            let Some(staged) = &mut self.staged else { return Ok(()) };
            if staged.publish(self.io.submission()) {
                return Ok(());
            }
            self.wake_thread()?;
            check_time(*deadline.get_or_insert_with(|| Instant::now() + THREAD_COMES))?;
        }
    }

    /// Gives the kernel's thread, which polls the queue, an occasion to go on.
    fn wake_thread(&mut self) -> io::Result<()> {
        if self.io.submission().need_wakeup() {
            // SAFETY: there is no argument.
            return tolerated(unsafe {
                self.call::<libc::sigset_t>(0, 0, EnterFlags::SQ_WAKEUP, None)
            });
        }
        thread::yield_now();
        Ok(())
    }

    /// Submits queued requests, and makes the kernel go through the chains as far as they go at once. Each
    /// link begins in deferred work, and a call runs at most as many deferred tasks as it waits for.
    fn go_through(&mut self) -> io::Result<()> {
        self.since_work = 0;
        let (submit, want) = (self.unsubmitted() as u32, std::mem::take(&mut self.chained));
        self.call_for_at_most(submit, want, EnterFlags::GETEVENTS, Duration::ZERO)
    }

    /// Continues chains with so many requests under way, as long as there is deferred work: each call,
    /// which waits for nothing, starts one link.
    pub(crate) fn go_on(&mut self, links: u32) -> io::Result<()> {
        for _ in 0..links {
            let queue = self.io.submission();
            // Completions that do not fit are taken before there are more.
            if !queue.taskrun() || queue.cq_overflow() {
                break;
            }
            drop(queue);
            // SAFETY: there is no argument.
            let called = unsafe { self.call::<libc::sigset_t>(0, 0, EnterFlags::GETEVENTS, None) };
            tolerated(called)?;
        }
        Ok(())
    }

    fn call_for_at_most(
        &self,
        submit: u32,
        want: u32,
        flags: EnterFlags,
        time: Duration,
    ) -> io::Result<()> {
        let time = Timespec::from(time);
        let args = SubmitArgs::new().timespec(&time);
        // SAFETY: the argument has the layout that EXT_ARG names and outlives the call.
        tolerated(unsafe { self.call(submit, want, flags | EnterFlags::EXT_ARG, Some(&args)) })
    }

    /// # Safety
    ///
    /// `argument` must be what `flags` say.
    unsafe fn call<T>(
        &self,
        submit: u32,
        want: u32,
        flags: EnterFlags,
        argument: Option<&T>,
    ) -> io::Result<usize> {
        self.calls.update(|calls| calls + 1);
        // SAFETY: queued entries may be submitted, by the contract of `push`; the caller answers for the
        // argument.
        unsafe {
            match &self.ring_fd {
                Some(ring_fd) => {
                    let argument = argument.map_or(ptr::null(), |it| ptr::from_ref(it).cast());
                    ring_fd.enter(submit, want, flags.bits(), argument, size_of::<T>())
                }
                None => self.io.submitter().enter(submit, want, flags.bits(), argument),
            }
        }
    }

    /// Takes completions, and places in exchange for the old ones; fewer completions than [`BATCH`] mean that
    /// the queue is empty.
    #[inline(always)]
    pub(crate) fn take<'a>(
        &mut self,
        batch: &'a mut Batch,
        places: &mut Vec<RawSpan>,
    ) -> &'a [Completion] {
        self.io.take(batch, places)
    }

    /// Whether the kernel has deferred work for this thread, or completions to bring over.
    fn has_work(&mut self) -> bool {
        let queue = self.io.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether the kernel keeps completions that did not fit into the queue.
    pub(crate) fn overflown(&mut self) -> bool {
        self.io.submission().cq_overflow()
    }
}

fn check_time(deadline: Instant) -> io::Result<()> {
    if Instant::now() < deadline {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        "the kernel's thread that polls the ring (DriverBuilder::sq_poll) does not come to it: give it processor time",
    ))
}

/// Errors that are no failure of a call.
fn tolerated(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        // ETIME: the time is over. EINTR: a signal; the caller looks around and calls again. EBUSY and
        // EAGAIN: the kernel wants completions taken first, or is short of memory for requests; requests
        // not submitted stay queued.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use io_uring::{opcode, types};
    use rustix::pipe::pipe;

    use super::*;
    use crate::ring::skip;

    fn ring(test: &str) -> Option<Ring> {
        skip::told(
            Ring::new((32, 0), 0, (0, 0), Shape::Narrow, None),
            &format!("ring::instance::{test}"),
        )
    }

    fn push(ring: &mut Ring, entry: squeue::Entry, linked: bool) {
        let flags = if linked { squeue::Flags::IO_LINK } else { squeue::Flags::empty() };
        // SAFETY: the tests' entries name no memory that goes before the ring.
        unsafe { ring.push(&entry.flags(flags)) };
    }

    fn taken(ring: &mut Ring) -> usize {
        std::iter::from_fn(|| ring.io.next()).count()
    }

    #[test]
    fn a_chain_that_waits_for_nothing_is_through_after_one_call() {
        let Some(mut ring) =
            ring("tests::a_chain_that_waits_for_nothing_is_through_after_one_call")
        else {
            return;
        };
        for until in [Until::Now, Until::Soon, Until::One, Until::OneOr(Duration::from_secs(9))] {
            for place in 1..=8 {
                push(&mut ring, opcode::Nop::new().build(), place < 8);
            }
            ring.expect_to_go_through(8);
            ring.enter(until).unwrap();
            assert_eq!(taken(&mut ring), 8, "{until:?}");
        }
    }

    #[test]
    fn a_chain_that_waits_after_all_holds_nobody_up() {
        let Some(mut ring) = ring("tests::a_chain_that_waits_after_all_holds_nobody_up") else {
            return;
        };
        let (source, sink) = pipe().unwrap();
        let begin = Instant::now();
        push(&mut ring, opcode::Nop::new().build(), true);
        push(&mut ring, opcode::PollAdd::new(types::Fd(source.as_raw_fd()), 1).build(), true);
        push(&mut ring, opcode::Nop::new().build(), false);
        ring.expect_to_go_through(3);
        ring.enter(Until::OneOr(Duration::from_secs(60))).unwrap();
        assert_eq!(taken(&mut ring), 1);
        ring.enter(Until::Now).unwrap();
        assert_eq!(taken(&mut ring), 0);
        rustix::io::write(&sink, b"x").unwrap();
        let mut rest = 0;
        while rest < 2 {
            ring.enter(Until::One).unwrap();
            rest += taken(&mut ring);
        }
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
}
