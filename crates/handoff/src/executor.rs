//! Running futures on the thread that owns a driver.
//!
//! Contracts:
//! - the driver has a turn after at most [`BETWEEN_TURNS`] polls of tasks, so that a task which wakes itself
//!   delays neither operations nor the clock. A task whose operations are all over at once waits now and
//!   then (`handle`).

use std::future::Future;

use async_executor::{LocalExecutor, Task};
use futures_lite::future::{or, yield_now};

use crate::driver::Driver;
use crate::error::Result;

/// The most polls of tasks between two turns of the driver.
const BETWEEN_TURNS: usize = 32;

/// Runs several futures on the thread that owns a driver.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Executor};
///
/// let driver = Driver::new()?;
/// let executor = Executor::new(&driver);
/// let other = executor.spawn(async { 6 });
/// assert_eq!(executor.run(async { other.await * 7 })?, 42);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Executor {
    driver: Driver,
    tasks: LocalExecutor<'static>,
}

impl Executor {
    /// An executor that turns `driver` while it runs.
    pub fn new(driver: &Driver) -> Self {
        Self { driver: driver.clone(), tasks: LocalExecutor::new() }
    }

    /// Starts a future beside the others. It runs while [`run`](Self::run) runs, and is dropped with its
    /// task unless you detach the task.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.tasks.spawn(future)
    }

    /// Runs all spawned futures until `future` ends.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to be entered.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.driver.block_on(or(future, self.run_tasks()))
    }

    async fn run_tasks<T>(&self) -> T {
        loop {
            for _ in 0..BETWEEN_TURNS {
                self.tasks.tick().await;
            }
            yield_now().await;
        }
    }
}
