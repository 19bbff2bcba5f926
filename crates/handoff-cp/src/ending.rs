//! The end of a transfer, which all its threads see: all their connections are through, or one has failed.
//!
//! Contracts:
//! - all report the first of several failures;
//! - a thread that is through keeps turning its driver until all are: the kernel may report to it about a queue
//!   that others still receive from.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use handoff::Driver;
use handoff_command::Failure;
use handoff_command::failure::Failed;

const WATCHING: &str = "watching threads";

pub(crate) struct Ending {
    state: Mutex<State>,
    /// Shut down at the end, also by a thread that panics.
    tell: UnixStream,
    /// Readable then.
    told: UnixStream,
}

#[derive(Default)]
struct State {
    /// Threads whose connections are under way.
    left: usize,
    failure: Option<Failure>,
}

impl Ending {
    /// # Errors
    ///
    /// When no descriptors are left.
    pub(crate) fn new() -> Result<Self, Failure> {
        let (tell, told) = UnixStream::pair().failed(WATCHING)?;
        Ok(Self { state: Mutex::default(), tell, told })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        // If it was shut down already, that is known.
        let _ = self.tell.shutdown(Shutdown::Both);
    }

    /// What a panicking thread shuts down.
    pub(crate) fn quit(&self) -> &UnixStream {
        &self.tell
    }

    /// So many threads get connections.
    pub(crate) fn begin(&self, threads: usize) {
        self.state().left = threads;
    }

    /// The connections of one more thread are through.
    pub(crate) fn through(&self) {
        let mut state = self.state();
        state.left = state.left.saturating_sub(1);
        if state.left == 0 {
            self.tell();
        }
    }

    /// The transfer has failed; only the first failure counts.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        let first = self.state().failure.get_or_insert(failure).clone();
        self.tell();
        first
    }

    /// # Errors
    ///
    /// The first failure so far.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.state().failure.clone().map_or(Ok(()), Err)
    }

    /// Waits for the end.
    ///
    /// # Errors
    ///
    /// The first failure.
    pub(crate) async fn wait(&self, driver: &Driver) -> Result<(), Failure> {
        let told = self.told.try_clone().failed(WATCHING)?;
        let told = driver.file(told).failed(WATCHING)?;
        told.readable().failed(WATCHING)?.await.failed(WATCHING)?;
        self.check()?;
        match self.state().left {
            0 => Ok(()),
            _ => Err(Failure::failed("a thread of the copy panicked")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(ending: &Ending) -> Result<(), Failure> {
        let driver = Driver::new().expect("a driver");
        driver.block_on(ending.wait(&driver)).expect("runs")
    }

    #[test]
    fn it_comes_when_the_last_is_through() {
        let ending = Ending::new().expect("a pair");
        ending.begin(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waited(&ending));
            ending.through();
            assert!(ending.told.set_nonblocking(true).is_ok());
            let early = std::io::Read::read(&mut &ending.told, &mut [0]);
            assert_eq!(early.expect_err("nothing yet").kind(), std::io::ErrorKind::WouldBlock);
            ending.through();
            assert_eq!(waiting.join().expect("ends"), Ok(()));
        });
        assert_eq!(waited(&ending), Ok(()));
    }

    #[test]
    fn all_see_the_first_failure() {
        let ending = Ending::new().expect("a pair");
        ending.begin(2);
        let first = Failure::failed("first");
        assert_eq!(ending.fail(first.clone()), first);
        assert_eq!(ending.fail(Failure::failed("second")), first);
        assert_eq!(waited(&ending), Err(first));
    }

    #[test]
    fn a_panic_ends_it() {
        let ending = Ending::new().expect("a pair");
        ending.begin(1);
        ending.quit().shutdown(Shutdown::Both).expect("is open");
        let failure = waited(&ending).expect_err("it did not end well");
        assert!(failure.line().expect("a line").contains("panicked"));
    }
}
