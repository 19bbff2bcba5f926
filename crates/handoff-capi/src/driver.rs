//! Drivers: their tasks, and the events that these leave.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, Stream};
use handoff::{Driver, Error, LoanStats, RingUse, Span, Wait};
use handoff_sys::process::Process;

use crate::boundary::{Failure, c_string, done, enter, put};
use crate::event::{HANDOFF_EVENT_RECEIVED, handoff_event};
use crate::handles::{self, Kind, handoff_driver, handoff_handle};

/// Use io_uring where it can be had, else epoll and system calls.
pub const HANDOFF_RING_PREFER: u32 = 0;
/// Use io_uring, or fail.
pub const HANDOFF_RING_REQUIRE: u32 = 1;
/// Use epoll and system calls.
pub const HANDOFF_RING_AVOID: u32 = 2;

/// How to make a driver. Fill with zeroes, set `size`, and then what differs from the default; 0 is the
/// default everywhere.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct handoff_driver_options {
    /// `sizeof(struct handoff_driver_options)`.
    pub size: u32,
    /// One of `HANDOFF_RING_...`.
    pub ring: u32,
    /// Entries of the submission queue.
    pub entries: u32,
    /// The most operations under way at once.
    pub in_flight: u32,
    /// Places for registered buffers.
    pub registered_buffers: u32,
    /// Places for registered files.
    pub registered_files: u32,
    /// 1: rx queues of network cards may be bound.
    pub zero_copy_receive: u32,
    /// Places of the completion queue, at least.
    pub completions: u32,
    /// How long the peer of a connection whose socket is closed may take next to nothing (less than 1 KiB a second) of
    /// what was sent, in milliseconds: then the connection is reset. The default is 60000; 1 resets at once.
    pub linger_ms: u32,
    /// The most sends that nobody waits for. A peer, told apart by its address, may have a quarter. The default is 4096.
    pub unclaimed_loans: u32,
    /// A thread of the kernel takes the requests, so that submitting them needs no call: for so many milliseconds after the
    /// last request it looks for others, and uses a processor meanwhile. 0: no such thread. With `HANDOFF_RING_REQUIRE`
    /// the driver fails if the kernel makes none; else `handoff_driver_sq_poll` says so.
    pub sq_poll_idle_ms: u32,
    /// The number of that thread's processor and 1; 0: any.
    pub sq_poll_cpu: u32,
    /// 1: of `zero_copy_receive`, only completions of received bytes have 32 bytes, where the kernel can do that.
    pub mixed_completions: u32,
    /// The most pipes that routes splice through at once. The default is as many as the process may have.
    pub pipes: u32,
}

/// What became of sends that nobody waited for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct handoff_loan_stats {
    /// How many of them are under way or on loan now.
    pub unclaimed: u64,
    /// How many were on loan for longer than `linger_ms`, on datagram sockets and on streams whose sockets were open:
    /// nothing ends them but the kernel, or `handoff_abort`.
    pub overdue: u64,
    /// Connections of closed sockets that were reset, because `unclaimed_loans` was used up or their peers took next to
    /// nothing.
    pub reset: u64,
}

/// How often tasks that wake themselves go on between two turns.
const ROUNDS: usize = 8;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Says that a task can go on.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Gives what an event tells of a handle, when C is told.
type GiveHandle = Box<dyn FnOnce(&Rc<State>) -> Result<handoff_handle, Failure>>;

/// An event that C was not told yet.
struct Told {
    event: handoff_event,
    text: Option<CString>,
    handle: Option<GiveHandle>,
}

/// A driver, what it is to do, and what became of that.
pub(crate) struct State {
    tasks: RefCell<FuturesUnordered<Task>>,
    /// Tasks that were begun while tasks ran.
    begun: RefCell<Vec<Task>>,
    woken: Arc<Woken>,
    /// Says so there.
    waker: Waker,
    events: RefCell<VecDeque<Told>>,
    /// Whether a loop of C's waits for the driver's descriptor.
    watched: Cell<bool>,
    /// The texts of the events that were told last.
    texts: RefCell<Vec<CString>>,
    made_by: Process,
    // After the tasks, whose handles are the driver's.
    pub(crate) driver: Driver,
}

impl Kind for Rc<State> {
    const NAME: &'static str = "a driver";
}

impl State {
    /// Begins a task, with the next turn: what is lent stays so until then, also where it is over at once. The task
    /// holds the state weakly, or the driver would never go.
    pub(crate) fn begin(&self, task: impl Future<Output = ()> + 'static) {
        self.begun.borrow_mut().push(Box::pin(task));
    }

    /// Runs the tasks that can go on. One that wakes itself again and again goes on with the next turn.
    pub(crate) fn run(&self) {
        // Mostly there are none: lanes have no tasks. Those of a child's parent go on there.
        if self.is_idle() || !self.made_by.is_this() {
            return;
        }
        // A task that runs must not run the others: whoever is at it goes on with what was begun.
        let Ok(mut tasks) = self.tasks.try_borrow_mut() else { return };
        let mut context = Context::from_waker(&self.waker);
        let mut rounds = 0;
        loop {
            self.woken.0.store(false, Relaxed);
            tasks.extend(self.begun.borrow_mut().drain(..));
            match Pin::new(&mut *tasks).poll_next(&mut context) {
                Poll::Ready(Some(())) => {}
                _ if self.is_idle() || rounds == ROUNDS => return,
                // Nothing but its wake tells of a task that waits once.
                _ => rounds += 1,
            }
        }
    }

    /// Whether no task can go on.
    fn is_idle(&self) -> bool {
        self.begun.borrow().is_empty() && !self.woken.0.load(Relaxed)
    }

    /// Begins a task that ends when what this returns goes.
    pub(crate) fn until_stopped(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) -> Stop {
        let (handle, registration) = AbortHandle::new_pair();
        let task = Abortable::new(task, registration);
        self.begin(async {
            // Whoever ended it knows.
            let _ = task.await;
        });
        Stop { task: handle, state: Rc::downgrade(self) }
    }

    /// Puts down an event, with its error in words.
    pub(crate) fn tell(&self, mut event: handoff_event, failure: Option<Failure>) {
        let text = failure.map(|failure| {
            event.error = -failure.errno;
            failure.into_text()
        });
        self.tell_in_words(event, text);
    }

    /// Puts down an event with what there is to say of it.
    pub(crate) fn tell_in_words(&self, event: handoff_event, text: Option<String>) {
        let text = text.map(|text| c_string(&text));
        self.events.borrow_mut().push_back(Told { event, text, handle: None });
    }

    /// Puts down an event about something that has no handle before C is told of it.
    pub(crate) fn tell_with_handle(
        &self,
        event: handoff_event,
        give: impl FnOnce(&Rc<Self>) -> Result<handoff_handle, Failure> + 'static,
    ) {
        let handle: Option<GiveHandle> = Some(Box::new(give));
        self.events.borrow_mut().push_back(Told { event, text: None, handle });
    }

    fn turn(
        self: &Rc<Self>,
        wait: Wait,
        places: &mut [std::mem::MaybeUninit<handoff_event>],
    ) -> Result<c_int, Failure> {
        self.run();
        let waits = self.events.borrow().is_empty() && self.is_idle();
        let wait = if waits { wait } else { Wait::No };
        self.driver.turn(wait)?;
        self.run();
        if self.watched.get() {
            // What the tasks have begun now makes it readable.
            let _ = self.driver.as_fd();
        }
        let mut texts = self.texts.borrow_mut();
        texts.clear();
        let mut events = self.events.borrow_mut();
        if events.is_empty() {
            return Ok(0);
        }
        let told = places.len().min(events.len());
        for (place, Told { mut event, mut text, handle }) in
            places.iter_mut().zip(events.drain(..told))
        {
            match handle.map(|give| give(self)) {
                None => {}
                Some(Ok(handle)) => event.handle = handle,
                Some(Err(failure)) => {
                    event.error = -failure.errno;
                    text = Some(c_string(&failure.text));
                }
            }
            if let Some(text) = text {
                // The text itself stays where it is when its owner moves.
                event.error_text = text.as_ptr();
                texts.push(text);
            }
            place.write(event);
        }
        Ok(told as c_int)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for Told { event, .. } in self.events.get_mut() {
            if event.kind == HANDOFF_EVENT_RECEIVED {
                // Nobody else can close a span that C was not told of.
                let _ = handles::remove::<Option<Span>>(event.handle);
            }
        }
    }
}

/// A task that ends when this goes.
pub(crate) struct Stop {
    task: AbortHandle,
    state: Weak<State>,
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.task.abort();
        // What it had of a socket is free at once.
        if let Some(state) = self.state.upgrade() {
            state.run();
        }
    }
}

/// Tells an event if the driver is still there.
pub(crate) fn tell(state: &Weak<State>, event: handoff_event, failure: Option<Failure>) {
    if let Some(state) = state.upgrade() {
        state.tell(event, failure);
    }
}

/// Tells how many bytes an operation moved, also of one that failed, if the driver is still there.
pub(crate) fn tell_bytes(
    state: &Weak<State>,
    mut event: handoff_event,
    result: Result<usize, handoff::Error>,
) {
    event.bytes = match &result {
        Ok(bytes) => *bytes as u64,
        Err(error) => done(error),
    };
    tell(state, event, result.err().map(Failure::from));
}

/// Makes a driver for this thread. `options` may be NULL.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `options` is NULL or points to as many bytes as its `size` says; `driver` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_driver_new(
    options: *const handoff_driver_options,
    driver: *mut handoff_driver,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let options = unsafe { sized(options, |options| options.size) }?;
        let mut builder = Driver::builder().ring(match options.ring {
            HANDOFF_RING_PREFER => RingUse::Prefer,
            HANDOFF_RING_REQUIRE => RingUse::Require,
            HANDOFF_RING_AVOID => RingUse::Avoid,
            _ => {
                return Err(Failure::invalid(
                    "the driver's options: ring is none of HANDOFF_RING_...",
                ));
            }
        });
        if options.entries != 0 {
            builder = builder.entries(options.entries);
        }
        if options.in_flight != 0 {
            builder = builder.in_flight(options.in_flight as usize);
        }
        if options.registered_buffers != 0 {
            builder = builder.registered_buffers(options.registered_buffers);
        }
        if options.registered_files != 0 {
            builder = builder.registered_files(options.registered_files);
        }
        if options.completions != 0 {
            builder = builder.completions(options.completions);
        }
        if options.linger_ms != 0 {
            let time = Duration::from_millis(options.linger_ms.into());
            builder = builder.linger(if options.linger_ms == 1 { Duration::ZERO } else { time });
        }
        if options.unclaimed_loans != 0 {
            builder = builder.unclaimed_loans(options.unclaimed_loans as usize);
        }
        if options.zero_copy_receive != 0 {
            builder = builder.zero_copy_receive(true);
        }
        if options.mixed_completions != 0 {
            builder = builder.mixed_completions(true);
        }
        if options.pipes != 0 {
            builder = builder.pipes(options.pipes as usize);
        }
        let idle = Duration::from_millis(options.sq_poll_idle_ms.into());
        builder = match (options.sq_poll_idle_ms, options.sq_poll_cpu.checked_sub(1)) {
            (0, None) => builder,
            (0, Some(_)) => {
                return Err(Failure::invalid(
                    "the driver's options: sq_poll_cpu is for the thread that sq_poll_idle_ms asks for",
                ));
            }
            (_, None) => builder.sq_poll(idle),
            (_, Some(cpu)) => builder.sq_poll_on(idle, cpu),
        };
        let make = || {
            let woken = Arc::<Woken>::default();
            Ok(Rc::new(State {
                tasks: RefCell::default(),
                begun: RefCell::default(),
                waker: Waker::from(Arc::clone(&woken)),
                woken,
                events: RefCell::default(),
                watched: Cell::default(),
                texts: RefCell::default(),
                made_by: Process::this(),
                driver: builder.build()?,
            }))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(driver, make) }
    })
}

/// Options as this version knows them: what the caller's do not have is 0, and what they have beyond must be.
///
/// # Safety
///
/// `options` is NULL or points to as many bytes as `size` says of them.
pub(crate) unsafe fn sized<T: Copy + Default>(
    options: *const T,
    size: impl Fn(&T) -> u32,
) -> Result<T, Failure> {
    let mut known = T::default();
    if options.is_null() {
        return Ok(known);
    }
    // SAFETY: every version begins with the size, which the caller vouches for.
    let theirs = unsafe { options.cast::<u32>().read_unaligned() } as usize;
    if theirs < size_of::<u32>() || theirs > 4096 {
        return Err(Failure::invalid("the options' size is not set: it is their sizeof"));
    }
    let common = theirs.min(size_of::<T>());
    // SAFETY: both have that many bytes, and any bytes are options, which are plain numbers and pointers.
    unsafe { std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut known).cast(), common) };
    // SAFETY: the caller's have that many bytes.
    let beyond =
        unsafe { std::slice::from_raw_parts(options.cast::<u8>().add(common), theirs - common) };
    if beyond.iter().any(|byte| *byte != 0) {
        return Err(Failure::new(
            libc::E2BIG,
            "the options have something set that this version of the library does not know",
        ));
    }
    debug_assert!(size(&known) as usize == theirs);
    Ok(known)
}

/// A descriptor that is readable when `handoff_turn` has something to do: for epoll and other loops. Then turn the
/// driver until it returns 0. The descriptor does not become readable by calls of yours: turn the driver after those,
/// too, before you wait. It stays the driver's: don't close it.
///
/// Returns the descriptor, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_driver_fd(driver: handoff_driver) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        state.watched.set(true);
        Ok(state.driver.as_fd().as_raw_fd())
    })
}

/// The descriptor of a driver's ring, for what io_uring can do and this library does not, such as registering things of your
/// own. The library submits and takes completions by it, on the driver's thread: do neither, and leave alone what it has
/// registered (tables of buffers and files, an eventfd, groups of provided buffers from 0 on). Don't close it.
///
/// Returns the descriptor, or a negative error number: `-EOPNOTSUPP` where the driver has no ring.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_driver_ring_fd(driver: handoff_driver) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        let ring = state.driver.ring_fd();
        ring.map(|ring| ring.as_raw_fd()).ok_or_else(|| {
            let reason = state.driver.ring_unavailable().unwrap_or_default().to_owned();
            Failure::from(Error::NoRing { action: "the descriptor of a ring", reason })
        })
    })
}

/// Whether a thread of the kernel takes the driver's requests, as `sq_poll_idle_ms` asks for.
///
/// Returns 1 if one does, 0 if none was asked for, and `-EOPNOTSUPP` if the kernel makes none; `handoff_error_text` says why.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_driver_sq_poll(driver: handoff_driver) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        match state.driver.sq_poll_unavailable() {
            Some(reason) => Err(Failure::new(libc::EOPNOTSUPP, reason)),
            None => Ok(c_int::from(state.driver.sq_polls())),
        }
    })
}

/// How many calls of io_uring_enter(2) a driver has made to submit requests, and to wait; 0 without a ring.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `calls` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_driver_ring_calls(
    driver: handoff_driver,
    calls: *mut u64,
) -> c_int {
    enter(|| {
        let made = handles::get::<Rc<State>>(driver)?.driver.ring_calls();
        // SAFETY: the caller vouches for it.
        unsafe { put(calls, made) }?;
        Ok(0)
    })
}

/// Operations under way: buffers on loan included.
///
/// Returns the number, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_driver_in_flight(driver: handoff_driver) -> c_int {
    enter(|| Ok(handles::get::<Rc<State>>(driver)?.driver.in_flight() as c_int))
}

/// What became of sends that nobody waited for.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `stats` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_driver_loans(
    driver: handoff_driver,
    stats: *mut handoff_loan_stats,
) -> c_int {
    enter(|| {
        let LoanStats { unclaimed, overdue, reset } =
            handles::get::<Rc<State>>(driver)?.driver.loan_stats();
        if stats.is_null() {
            return Err(Failure::invalid("the place for the numbers is NULL"));
        }
        // SAFETY: the caller vouches for it.
        unsafe { stats.write(handoff_loan_stats { unclaimed: unclaimed as u64, overdue, reset }) };
        Ok(0)
    })
}

/// Submits what was begun, waits, and tells what became of it.
///
/// `timeout_ns`: 0 does not wait; a positive number waits for so many nanoseconds at most; a negative one waits
/// until something happens, and not at all if nothing is under way. A signal ends the wait.
///
/// Returns how many events were written to `events`, at most `max`; what did not fit comes with the next call,
/// which does not wait then. 0 is no error: lanes tell nothing here, see `handoff_lane_take`.
///
/// # Safety
///
/// `events` points to room for `max` events, or `max` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_turn(
    driver: handoff_driver,
    timeout_ns: i64,
    events: *mut handoff_event,
    max: u32,
) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        let wait = match timeout_ns {
            0 => Wait::No,
            time if time > 0 => Wait::AtMost(Duration::from_nanos(time as u64)),
            _ => Wait::Event,
        };
        if events.is_null() && max != 0 {
            return Err(Failure::invalid("the place for events is NULL"));
        }
        let places = if max == 0 {
            &mut []
        } else {
            // SAFETY: the caller vouches for room for so many; nothing is read.
            unsafe {
                std::slice::from_raw_parts_mut(events.cast(), max.min(i32::MAX as u32) as usize)
            }
        };
        state.turn(wait, places)
    })
}
