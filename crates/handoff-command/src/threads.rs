//! Threads of a subcommand, each with a ring of its own.

use std::any::Any;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use crate::failure::Failure;

/// The share of the thread of this number in `most`.
pub fn share(most: u32, threads: u16, number: usize) -> u32 {
    let threads = u32::from(threads);
    most / threads + u32::from(number < (most % threads) as usize)
}

/// Runs each on a thread of its own. A thread that fails or panics shuts `quit` down, so that the others
/// end with it.
pub fn on_threads<T: Send>(
    quit: &UnixStream,
    tasks: Vec<impl FnOnce() -> Result<T, Failure> + Send>,
) -> Vec<Result<T, Failure>> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for task in tasks {
            threads.push(scope.spawn(move || {
                let mut guard = Quits { quit, well: false };
                let result = task();
                guard.well = result.is_ok();
                result
            }));
        }
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|end| end.unwrap_or_else(|panic| Err(panicked(&*panic)))).collect()
    })
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| panic.downcast_ref().copied()).unwrap_or("it did not say why");
    Failure::failed(format!("a thread panicked: {words}"))
}

/// Shuts `quit` down when it is dropped, unless all went well.
struct Quits<'a> {
    quit: &'a UnixStream,
    well: bool,
}

impl Drop for Quits<'_> {
    fn drop(&mut self) {
        if !self.well {
            // If it was shut down already, the others know.
            let _ = self.quit.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use super::*;
    use crate::failure::Failed as _;

    #[test]
    fn a_thread_that_panics_ends_the_others() {
        let (quit, watched) = UnixStream::pair().expect("a pair");
        watched.set_read_timeout(Some(Duration::from_secs(60))).expect("can wait");
        let tasks = vec![true, false].into_iter();
        let tasks = tasks.map(|panics| {
            let mut watched = watched.try_clone().expect("clones");
            move || {
                assert!(!panics, "on purpose");
                watched.read(&mut [0]).failed("waiting")
            }
        });
        let ends = on_threads(&quit, tasks.collect());
        let failure = ends[0].as_ref().expect_err("it panicked");
        assert_eq!(failure.code(), 1);
        assert!(format!("{failure:?}").contains("panicked: on purpose"), "{failure:?}");
        assert_eq!(ends[1].as_ref().ok(), Some(&0));
    }

    #[test]
    fn shares_are_all_there_is() {
        for (most, threads) in [(1, 1), (3, 3), (10, 4), (1_024, 3), (65_536, 255)] {
            let shares: Vec<_> =
                (0..usize::from(threads)).map(|number| share(most, threads, number)).collect();
            assert_eq!(shares.iter().sum::<u32>(), most);
            assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
        }
    }
}
