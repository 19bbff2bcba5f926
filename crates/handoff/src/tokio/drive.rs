//! Turning a driver from tokio's current-thread runtime.
//!
//! Contracts:
//! - [`beside_driver`] drops all tasks of the thread while driver and runtime still exist, also after a panic. Sends
//!   that nobody waits for get a moment to leave.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::{Builder, Handle};
use ::tokio::task::{LocalSet, spawn_local};
use futures_lite::future::or;

use crate::driver::Driver;
use crate::driver::builder::DriverBuilder;
use crate::error::{Error, Result};
use crate::ring::Until;

/// Time for operations under way to end when their thread ends.
const LINGER: Duration = Duration::from_secs(1);

/// Keeps the driver, and so its descriptor, for as long as tokio watches it.
struct Watched(Driver);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Turns `driver` whenever it has something to submit or to take. Spawn it once per driver with
/// `tokio::task::spawn_local`, and drop or abort it when you no longer need the driver. [`run`](super::run) does all
/// of that.
///
/// # Errors
///
/// When it is polled outside of tokio, the runtime refuses the driver's descriptor, or the kernel refuses to be
/// entered.
pub fn drive(driver: Driver) -> impl Future<Output = Result<()>> {
    driver.reactor.core.mark_driven();
    async { turn_on_readiness(driver).await.map(|never| match never {}) }
}

async fn turn_on_readiness(driver: Driver) -> Result<Infallible> {
    if Handle::try_current().is_err() {
        return Err(Error::Invalid(
            "a driver is turned here by tokio, and this thread runs no tokio runtime: use handoff::tokio::run, or \
             spawn this in a LocalSet of a runtime with I/O (enable_io)",
        ));
    }
    let reactor = &driver.reactor;
    // SAFETY: a driver keeps one descriptor open for as long as it lives, and `Watched` keeps the
    // driver.
    let descriptor =
        unsafe { AsyncFd::register_with_interest(Watched(driver.clone()), Interest::READABLE) }
            .map_err(|error| Error::io("registering the driver with tokio", error.into()))?;
    loop {
        reactor.turn(Until::Now)?;
        poll_fn(|context| {
            reactor.core.wakes().set_attention(context.waker());
            if !reactor.core.is_quiet() {
                return Poll::Ready(Ok(()));
            }
            let mut guard = ready!(descriptor.poll_read_ready(context))?;
            guard.clear_ready();
            Poll::Ready(Ok(()))
        })
        .await
        .map_err(|error: std::io::Error| Error::io("waiting for the driver", error))?;
    }
}

/// What runs beside a driver, of any type: the runtime's code is then compiled once, and not for each future.
type Work<'a> = Box<dyn FnOnce(Driver) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> + 'a>;

/// Runs a future to its end on this thread, beside a driver, in a runtime and a `LocalSet` of its own.
pub(super) fn beside_driver<F, Fut>(builder: DriverBuilder, work: F) -> Result<Fut::Output>
where
    F: FnOnce(Driver) -> Fut,
    Fut: Future,
{
    let mut output = None;
    let place = &mut output;
    let work: Work<'_> = Box::new(move |driver| {
        Box::pin(async move {
            *place = Some(work(driver).await);
            Ok(())
        })
    });
    run_beside_driver(builder, work)?;
    Ok(output.expect("the work has ended"))
}

fn run_beside_driver(builder: DriverBuilder, work: Work<'_>) -> Result<()> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("setting up a tokio runtime", error))?;
    let driver = builder.build()?;
    driver.reactor.core.mark_driven();
    let tasks = LocalSet::new();
    let working = async {
        let driving = spawn_local(turn_on_readiness(driver.clone()));
        let work = work(driver.clone());
        let failed = async {
            match driving.await {
                Ok(ended) => ended.map(|never| match never {}),
                // A waker of the user's.
                Err(ended) => resume_unwind(ended.into_panic()),
            }
        };
        or(work, failed).await
    };
    let over = catch_unwind(AssertUnwindSafe(|| tasks.block_on(&runtime, working)));
    let inside = runtime.enter();
    drop(tasks);
    drop(inside);
    let over = over.unwrap_or_else(|panic| resume_unwind(panic));
    let lingered = linger(&driver);
    over?;
    lingered
}

/// Turns the driver until nothing is under way, but not for ever: a peer may not read.
fn linger(driver: &Driver) -> Result<()> {
    let reactor = &driver.reactor;
    let end = Instant::now() + LINGER;
    // Accepted sends may not have started.
    reactor.turn(Until::Now)?;
    while reactor.core.kernel_holds_any() {
        let Some(left) = end.checked_duration_since(Instant::now()) else { break };
        reactor.turn(Until::OneOr(left))?;
    }
    Ok(())
}
