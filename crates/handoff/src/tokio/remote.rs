//! Handles, for any thread, on objects of a driver thread.
//!
//! Contracts:
//! - an object of the thread is touched only there: a call is a message, and its future runs there;
//! - calls on one handle begin in the order in which they are made;
//! - a call whose reply nobody awaits goes on to its end, and its output is dropped on the thread.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use ::tokio::sync::{mpsc, oneshot};
use ::tokio::task::spawn_local;
use futures_core::Stream;
use futures_lite::future::or;

use super::buffers::Buffers;
use crate::error::{Error, Result};
use crate::memory::{Buffer, BufferPool};
use crate::op::loan::Payload;
use crate::socket::Socket;
use crate::socket::send::Finished;

/// Values that may go to a driver thread, and come back: all that are `Send`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not cross threads",
    label = "it has something that stays on its thread, as all of a driver does",
    note = "drivers, sockets, receivers and spans are used where they are: in the call, or in tasks that \
            `tokio::task::spawn_local` starts in the `LocalSet` of their thread",
    note = "`Remote::host` leaves something on a driver thread and gives a handle; buffers, frozen buffers, \
            pools of buffers and `Bytes` cross"
)]
pub trait Crosses: Send {}

#[diagnostic::do_not_recommend]
impl<T: Send> Crosses for T {}

/// A call, as it crosses.
type Job<T> = Box<dyn FnOnce(T) + Send>;

/// A handle on an object of a driver thread: its [`Driver`](crate::Driver), a [`Socket`], or whatever
/// [`host`](Self::host) has put there. The handle is `Send`, `Sync` and `Clone`; the object is not.
///
/// Calls begin in the order in which they are made, and wait in an unbounded queue.
///
/// The last clone of a handle drops its object: a socket is closed behind its sends. The threads are those of a
/// [`DriverThreads`](super::DriverThreads). Once they are gone, a call ends with [`Error::ThreadGone`].
///
/// **Cost:** a call, its reply and the two wake-ups; [`DriverThreads`](super::DriverThreads) has the figure. Do much
/// in one call: a closure that sends ten buffers crosses once.
pub struct Remote<T>(mpsc::UnboundedSender<Job<T>>);

impl<T: Clone + 'static> Remote<T> {
    /// A handle on something of this thread, which is a driver's.
    fn here(it: T) -> Self {
        let (remote, calls) = Self::open();
        spawn_local(calls.answer(it));
        remote
    }

    /// A handle on something not made yet.
    pub(super) fn open() -> (Self, Calls<T>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), Calls(receiver))
    }

    /// Calls a closure on the thread, and runs the future that it returns there; gives the future's output.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use handoff::tokio::DriverThreads;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let threads = DriverThreads::new(2)?;
    /// let free = threads.next().call(|driver| async move { driver.in_flight() }).await?;
    /// assert_eq!(free, 0);
    /// # Ok(()) }) }
    /// ```
    ///
    /// Dropping the [`Reply`] does not end the call. For a time limit, use
    /// [`Driver::timeout`](crate::Driver::timeout) in it.
    ///
    /// # Errors
    ///
    /// The reply's: [`Error::ThreadGone`].
    ///
    /// # Panics
    ///
    /// Where the reply is awaited, with the panic of closure or future. The thread goes on.
    pub fn call<F, Fut>(&self, call: F) -> Reply<Fut::Output>
    where
        F: FnOnce(T) -> Fut + Crosses + 'static,
        Fut: Future + 'static,
        Fut::Output: Crosses + 'static,
    {
        let (reply, awaited) = oneshot::channel();
        let job = move |it| match catch_unwind(AssertUnwindSafe(|| call(it))) {
            Ok(future) => drop(spawn_local(async move { reply.send(caught(future).await) })),
            Err(panic) => drop(reply.send(Err(panic))),
        };
        // The reply reports a call that does not arrive.
        let _ = self.0.send(Box::new(job));
        // A job that came after the other end had gone may lie in the queue, and keep the reply open.
        Reply { awaited, gone: self.is_gone() }
    }

    /// As [`call`](Self::call), for a result that stays on the thread; returns a handle on it.
    ///
    /// ```no_run
    /// # async fn connect(threads: handoff::tokio::DriverThreads) -> handoff::Result<()> {
    /// let address = "192.0.2.1:9000".parse().unwrap();
    /// let socket = threads.next().host(move |driver| async move { driver.connect(address)?.await }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the future; [`Error::ThreadGone`].
    ///
    /// # Panics
    ///
    /// As `call`.
    pub fn host<F, Fut, U>(
        &self,
        call: F,
    ) -> impl Future<Output = Result<Remote<U>>> + Send + use<T, F, Fut, U>
    where
        F: FnOnce(T) -> Fut + Crosses + 'static,
        Fut: Future<Output = Result<U>> + 'static,
        U: Clone + 'static,
    {
        let call = |it| {
            let future = call(it);
            async move { future.await.map(Remote::here) }
        };
        // It is sent by now, so that it keeps its place.
        let reply = self.call(call);
        async { reply.await? }
    }

    /// Whether the thread has ended, so that no call will be answered.
    pub fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

impl Remote<Socket> {
    /// Lends a buffer to be sent whole, behind earlier sends by this handle. The reply comes when the buffer is back,
    /// with the number of bytes that the kernel took, or with the reason of a refusal.
    ///
    /// If you drop the reply, the send goes on, and the buffer is dropped when it comes back.
    ///
    /// # Errors
    ///
    /// The reply's: [`Error::ThreadGone`]; the buffer is then dropped. As of [`Sending`](crate::Sending), too.
    pub fn send<B: Payload + Send>(
        &self,
        buffer: B,
    ) -> impl Future<Output = Result<Finished<B>>> + Send + use<B> {
        // It is sent by now, so that it keeps its place.
        let reply = self.call(|socket| {
            let accepted = socket.send(buffer);
            async {
                match accepted {
                    Ok(sending) => sending.await,
                    Err(refused) => Ok(Finished {
                        sent: Err(refused.error),
                        buffer: refused.buffer,
                        receipt: Default::default(),
                    }),
                }
            }
        });
        async { reply.await? }
    }

    /// Receives into buffers of a pool, as [`Buffers`] does; at most `ahead` of them wait for you.
    ///
    /// A socket has one receiver. A dropped stream's receiver ends a moment later; another one that begins before
    /// gives an error.
    pub fn receive(&self, pool: &BufferPool, ahead: usize) -> RemoteBuffers {
        let (sender, mut receiver) = mpsc::channel(ahead.max(1));
        let pool = pool.clone();
        let begun = self.call(|socket| async move {
            match Buffers::new(socket, &pool) {
                Ok(buffers) => or(forward(buffers, &sender), sender.closed()).await,
                Err(error) => drop(sender.send(Some(Err(error))).await),
            }
        });
        if begun.gone {
            receiver.close();
        }
        RemoteBuffers(Some(receiver))
    }
}

/// Passes on what a stream has, and its end.
async fn forward(mut buffers: Buffers, to: &mpsc::Sender<Option<Result<Buffer>>>) {
    // Nothing leaves the socket before there is a place for it.
    while let Ok(place) = to.reserve().await {
        let next = poll_fn(|context| Pin::new(&mut buffers).poll_next(context)).await;
        let ends = !matches!(next, Some(Ok(_)));
        place.send(next);
        if ends {
            break;
        }
    }
}

impl<T> Clone for Remote<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Remote<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("gone", &self.0.is_closed()).finish()
    }
}

/// The calls of all handles on one object.
pub(super) struct Calls<T>(mpsc::UnboundedReceiver<Job<T>>);

impl<T: Clone> Calls<T> {
    /// Begins each call, until the last handle is gone.
    pub(super) async fn answer(mut self, it: T) {
        while let Some(job) = self.0.recv().await {
            job(it.clone());
        }
    }
}

/// A future's output, or its panic.
async fn caught<Fut: Future>(future: Fut) -> Result<Fut::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// The result of a call on a driver thread: a future for any thread and any runtime.
#[must_use = "without it nobody learns what the call came to"]
pub struct Reply<T> {
    awaited: oneshot::Receiver<Result<T, Box<dyn Any + Send>>>,
    /// The thread had ended when the call was made.
    gone: bool,
}

impl<T> Future for Reply<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match Pin::new(&mut self.awaited).poll(context) {
            Poll::Ready(Ok(Ok(output))) => Poll::Ready(Ok(output)),
            Poll::Ready(Ok(Err(panic))) => resume_unwind(panic),
            Poll::Pending if !self.gone => Poll::Pending,
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Ready(Err(Error::ThreadGone)),
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

/// What a socket on a driver thread receives: a `Stream` for any thread. It ends with the peer's stream, or
/// behind an error.
///
/// **Copies:** as [`Buffers`]. **Dropped:** a future of it loses nothing; dropping the stream loses what
/// waits for you.
#[derive(Debug)]
pub struct RemoteBuffers(Option<mpsc::Receiver<Option<Result<Buffer>>>>);

impl Stream for RemoteBuffers {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(receiver) = &mut self.0 else { return Poll::Ready(None) };
        // A thread that ends leaves the stream without an end.
        let next = ready!(receiver.poll_recv(context)).unwrap_or(Some(Err(Error::ThreadGone)));
        if !matches!(next, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(next)
    }
}
