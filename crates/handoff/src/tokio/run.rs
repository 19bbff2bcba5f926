//! Servers on the calling thread, and on several.
//!
//! Contracts:
//! - a thread that panics, or whose driver fails, ends the others: their futures are dropped where they next wait.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::{self, ScopedJoinHandle};

use ::tokio::runtime::Handle;
use ::tokio::sync::watch;
use futures_lite::future::or;

use super::drive::beside_driver;
use super::remote::Crosses;
use crate::driver::Driver;
use crate::driver::builder::DriverBuilder;
use crate::error::{Error, Result};

/// Runs a future on this thread, with a driver, a current-thread tokio runtime (I/O and time) and a `LocalSet`:
/// start tasks by `tokio::task::spawn_local`.
///
/// It ends with the future. Then the other tasks are dropped, and operations under way have up to a second to end:
/// sends that nobody awaited leave, if their peers take them. What is left after that ends as [`Driver`] says, and buffers
/// of a [`BufferPool`](crate::BufferPool) that the kernel then has do not come back.
///
/// ```
/// use handoff::tokio::TcpStream;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?;
/// # let peer = std::thread::spawn(move || std::io::copy(&mut listener.accept().unwrap().0, &mut std::io::sink()));
///
/// handoff::tokio::run(|driver| async move {
///     let mut stream = TcpStream::connect(&driver, address).await?;
///     stream.write_all(b"hello").await?;
///     stream.shutdown().await
/// })??;
/// # assert_eq!(peer.join().unwrap()?, 5);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// When the thread belongs to a tokio runtime, `spawn_blocking`'s included; when runtime or driver cannot be set up;
/// when the kernel refuses to be entered, and the future is then dropped.
pub fn run<F, Fut>(work: F) -> Result<Fut::Output>
where
    F: FnOnce(Driver) -> Fut,
    Fut: Future,
{
    run_with(Driver::builder(), work)
}

/// As [`run`], with a driver of other sizes.
///
/// # Errors
///
/// As `run`.
pub fn run_with<F, Fut>(builder: DriverBuilder, work: F) -> Result<Fut::Output>
where
    F: FnOnce(Driver) -> Fut,
    Fut: Future,
{
    check_outside()?;
    beside_driver(builder, work)
}

/// Runs a server on so many threads, each as [`run`] does, until the futures of all have ended; returns their
/// outputs, in the order of the threads.
///
/// Each thread calls `serve` once, with a driver of its own. Listeners of the same address share its connections:
/// [`TcpListener::bind_shared`](super::TcpListener::bind_shared). The threads are not bound to processors; `serve`
/// may do that. A thread whose future returns an error ends alone, and the others go on.
///
/// ```no_run
/// use handoff::tokio::{TcpListener, per_core};
///
/// # fn main() -> std::io::Result<()> {
/// let address = "0.0.0.0:9000".parse().unwrap();
/// let threads = std::thread::available_parallelism()?.get();
/// let served = per_core(threads, |driver| async move {
///     let mut listener = TcpListener::bind_shared(&driver, address)?;
///     loop {
///         let (mut stream, _peer) = listener.accept().await?;
///         // What goes wrong with one connection ends its task alone.
///         tokio::task::spawn_local(async move {
///             tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
///         });
///     }
/// })?;
/// served.into_iter().collect()
/// # }
/// ```
///
/// # Errors
///
/// As `run`; when a thread cannot be started. The other threads then end.
///
/// # Panics
///
/// When a thread panics, with its panic, after the other threads were ended.
pub fn per_core<F, Fut>(threads: usize, serve: F) -> Result<Vec<Fut::Output>>
where
    F: Fn(Driver) -> Fut + Sync,
    Fut: Future,
    Fut::Output: Crosses,
{
    per_core_with(Driver::builder(), threads, serve)
}

/// As [`per_core`], with drivers of other sizes.
///
/// # Errors
///
/// As `per_core`.
///
/// # Panics
///
/// As `per_core`.
pub fn per_core_with<F, Fut>(
    builder: DriverBuilder,
    threads: usize,
    serve: F,
) -> Result<Vec<Fut::Output>>
where
    F: Fn(Driver) -> Fut + Sync,
    Fut: Future,
    Fut::Output: Crosses,
{
    check_outside()?;
    let stop = watch::Sender::new(false);
    let serve_on_one = || {
        let mut stopped = stop.subscribe();
        let stopped = async move {
            let _ = stopped.wait_for(|stop| *stop).await;
            None
        };
        let work = |driver| {
            let served = serve(driver);
            or(async { Some(served.await) }, stopped)
        };
        // The panic goes on where the threads are joined.
        let over = catch_unwind(AssertUnwindSafe(|| beside_driver(builder.clone(), work)));
        if !matches!(over, Ok(Ok(_))) {
            stop.send_replace(true);
        }
        over
    };
    let over: Vec<_> = thread::scope(|scope| {
        let start = |number| {
            let started = named(number).spawn_scoped(scope, serve_on_one);
            started.map_err(|error| {
                stop.send_replace(true);
                Error::io("starting a driver thread", error)
            })
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        let join = |started: Result<ScopedJoinHandle<'_, _>>| match started?.join() {
            Ok(Ok(over)) => over,
            Ok(Err(panic)) | Err(panic) => resume_unwind(panic),
        };
        started.into_iter().map(join).collect()
    });
    // A thread that another one ended has nothing to report; the other has.
    over.into_iter().filter_map(Result::transpose).collect()
}

/// A thread by its number.
pub(super) fn named(number: usize) -> thread::Builder {
    thread::Builder::new().name(format!("handoff-{number}"))
}

/// A thread of a runtime runs no other runtime, and tokio does not distinguish its threads for blocking
/// calls.
fn check_outside() -> Result<()> {
    match Handle::try_current() {
        Ok(_) => Err(Error::Invalid(
            "this thread is one of a tokio runtime, as those of spawn_blocking are, and takes no other: call it on a \
             thread of its own (std::thread::spawn), use handoff::tokio::DriverThreads, whose futures are awaited anywhere, or \
             spawn handoff::tokio::drive in a LocalSet",
        )),
        Err(_) => Ok(()),
    }
}
