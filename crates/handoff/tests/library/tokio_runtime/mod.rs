//! Handoff inside tokio: drivers, servers, sockets and threads, by every engine. Needs the feature `tokio`.

mod crowd;
mod drive;
mod halves;
mod page;
mod programs;
mod ready;
mod servers;
mod sockets;
mod threads;
mod unix;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use handoff::{BufferPool, Driver, DriverBuilder, Engine, Region, RingUse};

use crate::traffic;

const LONG: Duration = Duration::from_secs(60);

/// How to build drivers: with a ring if there is one, and without.
fn builders() -> [DriverBuilder; 2] {
    [RingUse::Prefer, RingUse::Avoid].map(|ring| Driver::builder().ring(ring))
}

/// Runs a test with every engine, each on a driver of its own.
fn each_engine(test: impl AsyncFn(&Driver, Engine)) {
    for builder in builders() {
        for engine in traffic::engines(&builder.clone().build().unwrap()) {
            let work = async |driver: Driver| test(&driver, engine).await;
            handoff::tokio::run_with(builder.clone(), work).unwrap();
        }
    }
}

fn pool(buffers: usize, len: usize) -> BufferPool {
    BufferPool::new(Region::anonymous(buffers * len).unwrap(), len).unwrap()
}

/// Drops futures after so many polls that were not the last, and makes them anew.
struct Impatient {
    polls: usize,
    given_up: Cell<usize>,
}

impl Impatient {
    /// Runs a test with every number of polls, until no future was given up.
    async fn each(test: impl AsyncFn(&Self)) {
        for polls in 1..100 {
            let impatient = Self { polls, given_up: Cell::new(0) };
            test(&impatient).await;
            if impatient.given_up.get() == 0 {
                return;
            }
        }
        panic!("a future is polled a hundred times");
    }

    /// A future's output within so many polls.
    async fn once<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut left = self.polls;
        let over = poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                left -= 1;
                if left == 0 { Poll::Ready(None) } else { Poll::Pending }
            }
        });
        let over = over.await;
        if over.is_none() {
            self.given_up.update(|before| before + 1);
        }
        over
    }

    /// Its output, made anew as often as necessary.
    async fn again<T>(&self, mut make: impl AsyncFnMut() -> T) -> T {
        loop {
            if let Some(output) = self.once(make()).await {
                return output;
            }
            tokio::task::yield_now().await;
        }
    }
}
