//! The cooperative stop: SIGINT, SIGTERM and SIGHUP ask a subcommand to end.
//!
//! Contracts:
//! - the first signal only sets a flag and makes a descriptor readable; a waiter checks one of the two and
//!   returns [`Failure::Stopped`], so that drops put back what was set up;
//! - the second SIGINT or SIGTERM ends the process at once with 128 + signal, in case clean-up hangs.
//!   SIGHUP is not counted: at the end of a session several come, from the kernel and the shell;
//! - a process whose end may have to wait for others ([`Stop::catch_second_signal`]) goes on after the second
//!   signal, and sees that its end is insisted on;
//! - a process started to outlive its session (nohup, a device's supervisor) ignores SIGHUP. With the
//!   terminal gone, its output goes nowhere and nothing fails for it;
//! - handlers are installed with SA_RESTART, so a blocking call does not return by itself: wait with a
//!   timeout, or wait on [`Stop::fd`] as well. A call with a timeout returns EINTR all the same, so any
//!   failure after a signal ends as [`Failure::CutShort`].

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use handoff::Driver;
use handoff_sys::hangup;
use rustix::net::SendFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level;

use crate::failure::{Failed, Failure};

/// Whether the user or the system asked for the end. Clones see the same request.
#[derive(Debug, Clone)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
    /// Whether a second signal only sets the next flag.
    catches_second: Arc<AtomicBool>,
    insisted: Arc<AtomicBool>,
    wake: Arc<UnixStream>,
}

impl Stop {
    /// Installs the handlers. Called once, at the start of the process.
    ///
    /// # Errors
    ///
    /// Refusals of `sigaction(2)` or `socketpair(2)`.
    pub fn on_signals() -> io::Result<Self> {
        let (stop, waker) = Self::made()?;
        let Self { requested, signal, catches_second, insisted, .. } = &stop;
        let waker = Arc::new(waker);
        let asked = Arc::new(AtomicBool::new(false));
        let heard =
            if hangup::is_ignored() { &[SIGINT, SIGTERM][..] } else { &[SIGINT, SIGTERM, SIGHUP] };
        for &number in heard {
            let (requested, signal) = (Arc::clone(requested), Arc::clone(signal));
            let (waker, asked) = (Arc::clone(&waker), Arc::clone(&asked));
            let (catches_second, insisted) = (Arc::clone(catches_second), Arc::clone(insisted));
            // One action does everything: between several, a signal would be half handled.
            let action = move || {
                if number == SIGHUP {
                    hangup::fall_silent();
                } else if asked.swap(true, Ordering::AcqRel) {
                    if !catches_second.load(Ordering::Acquire) {
                        low_level::exit(128 + number);
                    }
                    insisted.store(true, Ordering::Release);
                }
                if requested.load(Ordering::Acquire) {
                    return;
                }
                signal.store(number as usize, Ordering::Release);
                requested.store(true, Ordering::Release);
                // The stream has room for one byte, and a later signal does not come here.
                let _ = rustix::net::send(&*waker, &[0], SendFlags::DONTWAIT);
            };
            // SAFETY: the action touches atomics and makes system calls, nothing else; it neither
            // allocates, locks, panics nor changes `errno`.
            unsafe { low_level::register(number, action) }?;
        }
        Ok(stop)
    }

    /// One that no signal requests, for tests of commands: its [`flag`](Self::flag) does.
    ///
    /// # Errors
    ///
    /// Refusals of `socketpair(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self::made()?.0)
    }

    /// With the other end of what wakes those who wait.
    fn made() -> io::Result<(Self, UnixStream)> {
        let (wake, waker) = UnixStream::pair()?;
        let stop = Self {
            requested: Arc::default(),
            signal: Arc::default(),
            catches_second: Arc::default(),
            insisted: Arc::default(),
            wake: Arc::new(wake),
        };
        Ok((stop, waker))
    }

    /// From here on a second SIGINT or SIGTERM does not end the process: [`insisted`](Self::insisted) tells of it.
    pub fn catch_second_signal(&self) {
        self.catches_second.store(true, Ordering::Release);
    }

    /// Whether a second signal has come to a process that catches it.
    pub fn insisted(&self) -> bool {
        self.insisted.load(Ordering::Acquire)
    }

    /// Whether a signal has come.
    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// `Err(Failure::Stopped)` once a signal has come, for use with `?` in loops.
    ///
    /// # Errors
    ///
    /// [`Failure::Stopped`] with the signal's number.
    pub fn check(&self) -> Result<(), Failure> {
        if self.requested() { Err(self.failure()) } else { Ok(()) }
    }

    /// How a subcommand ends that saw the request.
    pub fn failure(&self) -> Failure {
        Failure::Stopped(self.signal.load(Ordering::Acquire) as i32)
    }

    /// How a failed subcommand ends, whether or not it saw the request.
    #[must_use]
    pub fn explain(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Failed(cause) if self.requested() => {
                Failure::CutShort(self.signal.load(Ordering::Acquire) as i32, cause)
            }
            failure => failure,
        }
    }

    /// Waits for a signal on a driver; returns how the subcommand ends.
    pub async fn wait(&self, driver: &Driver) -> Failure {
        let wait = async {
            let signal = self.fd().try_clone_to_owned().failed("watching for signals")?;
            let signal = driver.file(signal).failed("watching for signals")?;
            loop {
                self.check()?;
                let readable = signal.readable().failed("watching for signals")?;
                readable.await.failed("watching for signals")?;
            }
        };
        let ended: Result<Infallible, Failure> = wait.await;
        match ended {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    /// The flag itself, for code below this crate that polls a plain `AtomicBool`.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.requested
    }

    /// A descriptor that becomes and stays readable when a signal comes. Never read from it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
