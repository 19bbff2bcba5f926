//! Running futures on the thread that owns a driver.

use std::future::Future;

use async_executor::{LocalExecutor, Task};

use crate::driver::Driver;
use crate::error::Result;

/// Runs several futures on the thread that owns a driver.
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

    /// Starts a future beside the others. It runs while [`run`](Self::run) does, and is dropped with
    /// its task unless that is detached.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.tasks.spawn(future)
    }

    /// Runs all spawned futures until `future` ends.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to be entered.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.driver.block_on(self.tasks.run(future))
    }
}
