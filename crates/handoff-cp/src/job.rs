//! One thread's part of a copy: the [`Order`] that all threads share, with a driver and memory.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use handoff::{Buffer, Driver, Error, File, Memory as Registrable, Pages, Region, Socket, Wait};
use handoff_command::failure::Failed;
use handoff_command::{Failure, clock};
use handoff_net::path;

use crate::order::{Order, kind};

/// An order on one thread.
pub(crate) struct Job<'a> {
    pub(crate) order: &'a Order<'a>,
    pub(crate) driver: Driver,
    /// The kind of source, in a word, once it is open.
    pub(crate) source_kind: Cell<Option<&'static str>>,
    /// How often the peer has said that it is at work.
    heard: Cell<u64>,
}

/// Memory for pieces.
pub(crate) struct Memory {
    pub(crate) buffers: Vec<Buffer>,
    /// Registered with the ring.
    pub(crate) registered: bool,
}

impl<'a> Job<'a> {
    /// # Errors
    ///
    /// If there can be no driver.
    pub(crate) fn new(order: &'a Order<'a>) -> Result<Self, Failure> {
        let args = order.args;
        let driver = Driver::builder()
            .zero_copy_receive(args.nic.is_some())
            // Each piece that the kernel lends takes a slot beside those of our memory.
            .registered_buffers(64 + u32::from(args.depth.max(args.streams)))
            .build();
        let driver = driver.failed("setting up")?;
        if let Some(reason) = driver.ring_unavailable() {
            order.note(format!("plain system calls instead of io_uring: {reason}"));
        }
        Ok(Self { order, driver, source_kind: Cell::new(None), heard: Cell::new(0) })
    }

    /// Makes a socket send by the requested engine.
    ///
    /// # Errors
    ///
    /// [`Failure::NotPossible`] if it cannot.
    pub(crate) fn set_engine(&self, socket: &Socket) -> Result<(), Failure> {
        socket.set_engine(self.order.args.engine.into()).failed("choosing the engine")
    }

    /// A file opened past the page cache, or a note why not.
    pub(crate) fn direct(&self, opened: io::Result<std::fs::File>) -> Option<File> {
        let attached = opened
            .map_err(|error| error.to_string())
            .and_then(|file| self.driver.file(file).map_err(|error| error.to_string()))
            .and_then(|file| match file.is_direct() {
                true => Ok(file),
                false => Err("the file system is in memory".to_owned()),
            });
        attached
            .map_err(|reason| {
                self.order.note(format!("through the page cache in spite of --direct: {reason}"));
            })
            .ok()
    }

    /// Maps memory, of huge pages if wanted.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(crate) fn region(&self, len: usize) -> Result<Region, Failure> {
        let region = if self.order.args.huge { Region::huge(len) } else { Region::anonymous(len) };
        let region = region.failed("setting memory aside")?;
        if let Pages::BaseInsteadOfHuge(reason) = region.pages() {
            self.order.note(format!("base pages instead of huge ones: {reason}"));
        }
        Ok(region)
    }

    /// Address space for memory that is used piece by piece, or memory of huge pages if wanted.
    ///
    /// # Errors
    ///
    /// As [`region`](Self::region).
    pub(crate) fn reserved(&self, len: usize) -> Result<Region, Failure> {
        match self.order.args.huge {
            true => self.region(len),
            false => Region::reserved(len).failed("setting memory aside"),
        }
    }

    /// Registers memory with the ring; returns whether it is registered, with a note if that was refused.
    pub(crate) fn register(&self, region: &impl Registrable) -> bool {
        match self.driver.register(region) {
            Ok(_) => true,
            // The reason for the missing ring was reported already.
            Err(Error::NoRing { .. }) => false,
            Err(error) => {
                self.order.note(format!("memory is used unregistered: {error}"));
                false
            }
        }
    }

    /// Buffers to carry pieces in.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub(crate) fn memory(&self, streams: usize) -> Result<Memory, Failure> {
        let depth = self.order.depth(streams);
        let bytes = self.order.memory_for(streams)?;
        let mut region = self.region(bytes)?;
        let piece = bytes / depth;
        let registered = self.register(&region);
        let mut buffers = region.chunks(piece);
        buffers.truncate(depth);
        Ok(Memory { buffers, registered })
    }

    /// The name of the engine that reads or writes files.
    pub(crate) fn file_engine(&self, verb: &str, registered: bool) -> String {
        match (self.driver.ring_unavailable(), registered) {
            (None, true) => format!("uring-{verb}-fixed"),
            (None, false) => format!("uring-{verb}"),
            (Some(_), _) => verb.to_owned(),
        }
    }

    pub(crate) fn source_kind(&self) -> &'static str {
        self.source_kind.get().unwrap_or_else(|| kind(&self.order.source))
    }

    /// Turns the driver while a future [moves](Self::while_moving).
    ///
    /// # Errors
    ///
    /// As [`while_moving`](Self::while_moving).
    pub(crate) fn until_stopped<T>(
        &self,
        future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.until_cut_off(&[], future)
    }

    /// The same with these connections.
    ///
    /// # Errors
    ///
    /// As [`while_moving`](Self::while_moving).
    pub(crate) fn until_cut_off<T>(
        &self,
        connections: &[&Socket],
        future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let moving = self.while_moving(connections, future);
        self.driver.block_on(moving).failed("waiting in the kernel")?
    }

    /// Waits for a future to its end, or to the stop, or until nothing has moved for too long (--idle), or the host at
    /// the other end of one of these connections has not answered for too long.
    ///
    /// # Errors
    ///
    /// Its own, or [`Failure::Stopped`], or that nothing moved.
    pub(crate) async fn while_moving<T>(
        &self,
        connections: &[&Socket],
        future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let given_up = async {
            let still = self.standing_still(connections);
            select(pin!(self.stopped()), pin!(still)).await.factor_first().0
        };
        unless(given_up, future).await
    }

    /// Waits for a future to its end, or to the stop.
    ///
    /// # Errors
    ///
    /// Its own, or [`Failure::Stopped`].
    pub(crate) async fn unless_stopped<T>(
        &self,
        future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        unless(self.stopped(), future).await
    }

    /// The peer has said that it is at work.
    pub(crate) fn hear(&self) {
        self.heard.set(self.heard.get() + 1);
    }

    /// Ends when nothing has moved for too long.
    async fn standing_still(&self, connections: &[&Socket]) -> Failure {
        let Some(silence) = self.order.args.silence() else { return std::future::pending().await };
        if connections.is_empty() && self.order.args.idle().is_none() {
            return std::future::pending().await;
        }
        let signs = || (self.order.progress.position(), self.heard.get());
        let (mut seen, mut since) = (signs(), Instant::now());
        loop {
            clock::pass(&self.driver, clock::between_looks(silence)).await;
            let moved = signs();
            if moved != seen {
                (seen, since) = (moved, Instant::now());
            } else if let Err(failure) = self.stands_still(since) {
                return failure;
            }
            if let Err(failure) = self.hears(connections) {
                return failure;
            }
        }
    }

    /// Whether the host at the other end has answered nothing for too long (--idle).
    ///
    /// # Errors
    ///
    /// That it has not.
    pub(crate) fn hears(&self, connections: &[&Socket]) -> Result<(), Failure> {
        let Some(most) = self.order.args.silence() else { return Ok(()) };
        match connections.iter().filter_map(path::silence).max() {
            Some(silence) if silence >= most => Err(self.order.cut(Failure::failed(format!(
                "the peer's host has answered nothing for {} s: it is down, or cut off (--idle)",
                silence.as_secs()
            )))),
            _ => Ok(()),
        }
    }

    /// Whether it is too long that nothing has moved since then (--idle).
    ///
    /// # Errors
    ///
    /// That it is.
    pub(crate) fn stands_still(&self, since: Instant) -> Result<(), Failure> {
        match self.order.args.idle() {
            Some(idle) if since.elapsed() >= idle => {
                Err(self.order.cut(Failure::failed("nothing moved for too long (--idle)")))
            }
            _ => Ok(()),
        }
    }

    /// The failure of a signal, once one has come to any thread.
    async fn stopped(&self) -> Failure {
        self.order.stop.wait(&self.driver).await
    }

    /// Runs a future for at most `time`.
    pub(crate) fn for_at_most<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let mut future = pin!(future);
        let mut context = TaskContext::from_waker(Waker::noop());
        let until = Instant::now() + time;
        // The futures see that somebody turns the driver.
        self.driver.turn(Wait::No).ok()?;
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return Some(value);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.driver.in_flight() == 0 {
                return None;
            }
            self.driver.turn(Wait::AtMost(left)).ok()?;
        }
    }
}

/// What a future comes to, unless `given_up` ends before it.
async fn unless<T>(
    given_up: impl Future<Output = Failure>,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match select(pin!(future), pin!(given_up)).await {
        Either::Left((ended, _)) => ended,
        Either::Right((failure, _)) => Err(failure),
    }
}
