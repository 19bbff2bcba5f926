//! Driver threads beside a runtime with its own threads.
//!
//! Contracts:
//! - the threads end when the last handle on all of them goes, and never before, unless a driver fails.

use std::fmt;
use std::future::ready;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use ::tokio::sync::watch;
use futures_lite::future::or;

use super::drive::beside_driver;
use super::remote::Remote;
use super::run::named;
use crate::driver::Driver;
use crate::driver::builder::DriverBuilder;
use crate::error::{Error, Result};
use crate::socket::Socket;

/// Threads with a driver each, for programs on tokio's multi-thread runtime, or on any other. The handle is `Send`,
/// `Sync` and `Clone`, you can await its futures anywhere, and buffers move to the threads and back.
///
/// Sockets are spread over the threads, and stay there. Accept with your runtime's listener, and hand the
/// connections over:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures_util::StreamExt;
/// use handoff::tokio::DriverThreads;
/// use handoff::{BufferPool, Region};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let threads = DriverThreads::new(2)?;
/// let pool = BufferPool::new(Region::anonymous(1 << 20)?, 1 << 14)?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr()?;
/// # let peer = std::thread::spawn(move || {
/// #     use std::io::{Read, Write};
/// #     let mut peer = std::net::TcpStream::connect(address).unwrap();
/// #     peer.write_all(b"hello").unwrap();
/// #     peer.shutdown(std::net::Shutdown::Write).unwrap();
/// #     std::io::read_to_string(&mut peer).unwrap()
/// # });
///
/// let (connection, _peer) = listener.accept().await?;
/// let socket = threads.socket(connection.into_std()?).await?;
/// let mut arriving = socket.receive(&pool, 4);
/// while let Some(buffer) = arriving.next().await {
///     socket.send(buffer?).await?.sent?;
/// }
/// # drop(socket);
/// # assert_eq!(peer.join().unwrap(), "hello");
/// # Ok(()) }) }
/// ```
///
/// **Cost:** a call and its reply took 5 µs one after another, most of it the two wake-ups, and 0.4 µs each among
/// 2,000 at once. A send of 64 bytes, copied, took 3.4 µs among as many, and 1.9 µs where one call made them all.
/// (Medians on a virtual machine with 2 processors of an AMD EPYC, 2026-11-25, by `examples/crossing.rs`; 7, 0.4, 5.5
/// and 2.1 µs while both were busy.) Code on its driver's own thread, as with [`run`](super::run), pays none of that.
///
/// **End:** the threads end with the last clone, as [`run`](super::run) does: their tasks are dropped, and
/// operations under way have up to a second. [`shutdown`](Self::shutdown) waits for that.
#[derive(Clone)]
pub struct DriverThreads(Arc<Shared>);

struct Shared {
    threads: Vec<Remote<Driver>>,
    /// The thread for the next socket.
    next: AtomicUsize,
    /// Each thread has a receiver until its end.
    stop: watch::Sender<()>,
}

impl DriverThreads {
    /// Starts so many threads, and at least one. It waits until their drivers exist, for some milliseconds.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started, or its driver cannot be built.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with(Driver::builder(), threads)
    }

    /// As [`new`](Self::new), with drivers of other sizes.
    ///
    /// # Errors
    ///
    /// As `new`.
    pub fn with(builder: DriverBuilder, threads: usize) -> Result<Self> {
        let stop = watch::Sender::new(());
        let threads =
            (0..threads.max(1)).map(|number| start(number, builder.clone(), stop.subscribe()));
        let threads = threads.collect::<Result<_>>()?;
        Ok(Self(Arc::new(Shared { threads, next: AtomicUsize::new(0), stop })))
    }

    /// The threads, by their drivers.
    pub fn threads(&self) -> &[Remote<Driver>] {
        &self.0.threads
    }

    /// The next thread in turn, skipping those that are gone while others are there.
    pub fn next(&self) -> &Remote<Driver> {
        let threads = self.threads();
        let first = self.0.next.fetch_add(1, Relaxed) % threads.len();
        let (before, from) = threads.split_at(first);
        from.iter().chain(before).find(|thread| !thread.is_gone()).unwrap_or(&threads[first])
    }

    /// Attaches a socket to the next thread's driver.
    ///
    /// # Errors
    ///
    /// As [`Driver::socket`]; [`Error::ThreadGone`].
    pub fn socket<S: Into<OwnedFd>>(
        &self,
        socket: S,
    ) -> impl Future<Output = Result<Remote<Socket>>> + Send + use<S> {
        let socket = socket.into();
        self.next().host(|driver| ready(driver.socket(socket)))
    }

    /// Connects to an address by TCP, on the next thread.
    ///
    /// # Errors
    ///
    /// As [`Driver::connect`], and the kernel's error about the peer; [`Error::ThreadGone`].
    pub fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = Result<Remote<Socket>>> + Send + use<> {
        self.next().host(move |driver| async move { driver.connect(address)?.await })
    }

    /// Ends the threads, even if others have clones of this, and waits for their end.
    pub async fn shutdown(self) {
        self.0.stop.send_replace(());
        self.0.stop.closed().await;
    }
}

impl fmt::Debug for DriverThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverThreads").field("threads", &self.threads().len()).finish()
    }
}

/// Starts a thread, and waits until its driver exists.
fn start(
    number: usize,
    builder: DriverBuilder,
    mut stopped: watch::Receiver<()>,
) -> Result<Remote<Driver>> {
    let (remote, calls) = Remote::open();
    let (ready, is_ready) = mpsc::channel();
    let thread = move || {
        let over = beside_driver(builder, |driver| {
            let _ = ready.send(Ok(()));
            let stopped = async {
                // It is told to end, or the last handle is gone.
                let _ = stopped.changed().await;
            };
            or(calls.answer(driver), stopped)
        });
        if let Err(error) = over {
            tracing::error!(%error, "a driver thread has ended");
            let _ = ready.send(Err(error));
        }
        drop(stopped);
    };
    named(number).spawn(thread).map_err(|error| Error::io("starting a driver thread", error))?;
    is_ready.recv().unwrap_or(Err(Error::ThreadGone)).map(|()| remote)
}
