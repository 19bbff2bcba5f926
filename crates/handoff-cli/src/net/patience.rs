//! Waiting before the bytes flow: for a descriptor or for a thread, until a time or the stop.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use handoff::Driver;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failed;
use crate::{Failure, Stop};

/// How often a wait for a thread looks at the stop.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A point in time that waits end at, and the stop.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    stop: &'a Stop,
    /// `None` waits for ever.
    until: Option<Instant>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(stop: &'a Stop, time: Option<Duration>) -> Self {
        // A time-out past the end of time is none.
        Self { stop, until: time.and_then(|time| Instant::now().checked_add(time)) }
    }

    /// The same, and no longer than `time`.
    pub(crate) fn at_most(self, time: Duration) -> Self {
        let until = Instant::now().checked_add(time);
        Self { until: self.until.into_iter().chain(until).min(), ..self }
    }

    /// Whether the time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// The time left, `None` when there is no end.
    fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Runs what a driver does, which is told how long it may take, to its end or to the stop.
    pub(crate) fn on<T>(
        &self,
        driver: &Driver,
        work: impl AsyncFnOnce(Duration) -> T,
    ) -> Result<T, Failure> {
        let ended = driver.block_on(async {
            let work = pin!(work(self.left().unwrap_or(Duration::MAX)));
            match select(work, pin!(self.stop.wait(driver))).await {
                Either::Left((done, _)) => Ok(done),
                Either::Right((failure, _)) => Err(failure),
            }
        });
        ended.failed("waiting for a connection")?
    }

    /// Waits for events of `fd`; false when the time is over.
    pub(crate) fn wait(&self, fd: impl AsFd, events: PollFlags) -> Result<bool, Failure> {
        self.wait_for_any(&mut vec![PollFd::from_borrowed_fd(fd.as_fd(), events)])
    }

    /// Waits for events of any of `fds`, and leaves in them what they have; false when the time is over.
    pub(crate) fn wait_for_any<'b>(&self, fds: &mut Vec<PollFd<'b>>) -> Result<bool, Failure>
    where
        'a: 'b,
    {
        loop {
            self.stop.check()?;
            let left = self.left();
            let time = left.map(|left| Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            fds.push(PollFd::from_borrowed_fd(self.stop.fd(), PollFlags::IN));
            let polled = poll(fds, time.as_ref());
            fds.pop();
            match polled {
                Ok(_) if fds.iter().any(|fd| !fd.revents().is_empty()) => return Ok(true),
                Ok(_) if left.is_some_and(|left| left.is_zero()) => return Ok(false),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(Failure::failed(format!("waiting for a socket: {error}")));
                }
            }
        }
    }

    /// Runs what can't be interrupted on a thread of its own, which is left behind when the time is
    /// over; `None` then.
    pub(crate) fn detached<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, Failure> {
        let (tell, done) = mpsc::channel();
        std::thread::spawn(move || {
            // Nobody waits any more when this fails.
            let _ = tell.send(work());
        });
        loop {
            self.stop.check()?;
            match done.recv_timeout(LOOK_AGAIN) {
                Ok(result) => return Ok(Some(result)),
                Err(_) if self.left().is_some_and(|left| left.is_zero()) => return Ok(None),
                Err(_) => {}
            }
        }
    }
}

/// Opens a named pipe or a device, which may wait for somebody at its other end.
///
/// # Errors
///
/// What the kernel refuses, and the stop.
pub(crate) fn open(stop: &Stop, path: &Path, options: OpenOptions) -> Result<File, Failure> {
    let owned = path.to_owned();
    match Patience::new(stop, None).detached(move || options.open(owned))? {
        Some(Ok(file)) => Ok(file),
        Some(Err(error)) => Err(Failure::failed(format!("opening {}: {error}", path.display()))),
        None => unreachable!("a wait without an end has no end"),
    }
}
