//! Waiting before the bytes flow: for a driver's operation or for a thread, until a time or the stop.

use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use handoff::Driver;
use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop};

/// How often a wait for a thread checks the stop.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The time that waits end at, and the stop.
#[derive(Clone, Copy)]
pub struct Deadline<'a> {
    stop: &'a Stop,
    /// `None` waits for ever.
    until: Option<Instant>,
}

impl<'a> Deadline<'a> {
    /// Waits end after `time`, if there is one, or with the stop.
    pub fn new(stop: &'a Stop, time: Option<Duration>) -> Self {
        // A time-out past the end of time means none.
        Self { stop, until: time.and_then(|time| Instant::now().checked_add(time)) }
    }

    /// The time left, `None` when there is no end.
    fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Runs an operation of a driver, which is told how long it may take, to its end or to the stop.
    ///
    /// # Errors
    ///
    /// The stop, and the driver's own.
    pub fn block_on<T>(
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

    /// Runs uninterruptible work on a thread of its own; when the time is over, leaves the thread behind
    /// and returns `None`.
    ///
    /// # Errors
    ///
    /// The stop.
    pub fn detached<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, Failure> {
        let (tell, done) = mpsc::channel();
        std::thread::spawn(move || {
            // Nobody waits any more if this fails.
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
