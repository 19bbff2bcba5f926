//! Routes carry all bytes of a source to a sink by the best engine that works. If it does not work, the
//! next one serves, and the result says so.
//!
//! Contracts:
//! - bytes arrive once and in order, whatever engines serve; nobody else receives from the source meanwhile ([`held`]);
//! - the route reports engines that it passed over, and why ([`Route::passed_over`]), and what the CPU
//!   copied on either side, as far as the kernel reports it;
//! - a stream's first pieces to a socket are copied where several engines may serve, as long as they are few and small
//!   ([`first`]);
//! - where the driver has no room, a route waits for the sends of its sink, and for others unless it keeps room from them;
//! - memory is bounded: at most [`PIECES`] pieces of [`PIECE`] bytes are on their way (of a file to a cipher, four of 64 KiB),
//!   so a slow sink slows its source.
//!
//! - nothing passes what ciphers: what a TLS connection deciphers goes through memory; to one that the kernel ciphers, files
//!   and streams are spliced; what this process ciphers goes through memory ([`whole`]).
//!
//! Minimum kernel, capability and return signal are those of the engine.

mod carry;
mod cold;
mod delivery;
mod ends;
mod engines;
mod first;
mod held;
#[cfg(feature = "getbuf")]
mod lent;
mod pause;
mod serve;
mod splice;
mod supply;
mod whole;

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

pub use ends::{RouteSink, RouteSource};
pub use engines::RouteEngine;

use self::whole::Whole;
use crate::driver::Driver;
use crate::error::Result;
use crate::file::File;
use crate::outcome::Tally;
use crate::reactor::Reactor;
use crate::socket::Socket;

/// The most pieces on their way at once.
pub(crate) const PIECES: usize = 16;
/// The most bytes of a piece.
pub(crate) const PIECE: usize = 256 << 10;

impl Socket {
    /// Sends a range of a file, or as much of it as the file has, by the best engine that works: a [`Route`],
    /// run to its end. Its bytes follow the sends accepted before; wait for its end before you send more.
    pub async fn send_file(&self, file: &File, range: Range<u64>) -> Carried {
        Route::on(&self.driver, (file, range).into(), self.into()).run().await
    }
}

/// Bytes from a source to a sink, before they are carried.
///
/// ```no_run
/// use handoff::{Driver, Route};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new()?;
/// let file = driver.file(std::fs::File::open("disk.img")?)?;
/// let socket = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// let mut route = Route::new(&driver, (&file, 0..u64::MAX), &socket);
/// let carried = driver.block_on(route.run())?;
/// carried.result?;
/// println!("{} bytes by {}, {} copied", carried.bytes, carried.engine, carried.given.copied);
/// # Ok(()) }
/// ```
pub struct Route {
    driver: Rc<Reactor>,
    source: RouteSource,
    sink: RouteSink,
    /// Bytes to send before the source's.
    head: Vec<u8>,
    /// What [`run_at_once`](Self::run_at_once) has left in a pipe.
    begun: Option<splice::Lent>,
    /// Engines that may serve, best first.
    engines: &'static [RouteEngine],
    /// The first pieces of a stream are being copied.
    copies_first: bool,
    passed_over: Vec<(RouteEngine, String)>,
    moved: Rc<Cell<u64>>,
    taken: Tally,
    given: Tally,
}

/// The result of a route.
///
/// ```no_run
/// # async fn example(mut route: handoff::Route) -> Result<(), Box<dyn std::error::Error>> {
/// let carried = route.run().await;
/// println!("{} bytes by {}", carried.bytes, carried.engine);
/// println!("copied on the way in: {}, out: {}", carried.taken.copied, carried.given.copied);
/// carried.result?; // whether that is all of them
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Carried {
    /// Whether all bytes went over.
    pub result: Result<()>,
    /// Bytes that the sink took.
    pub bytes: u64,
    /// The engine that served last.
    pub engine: RouteEngine,
    /// Bytes by whether the CPU copied them out of the source.
    pub taken: Tally,
    /// Bytes by whether the CPU copied them into the sink.
    pub given: Tally,
}

impl Route {
    /// Joins a source to a sink. Nothing is moved before [`run`](Self::run).
    pub fn new(
        driver: &Driver,
        source: impl Into<RouteSource>,
        sink: impl Into<RouteSink>,
    ) -> Self {
        Self::on(&driver.reactor, source.into(), sink.into())
    }

    fn on(driver: &Rc<Reactor>, source: RouteSource, sink: RouteSink) -> Self {
        let engines = match &source {
            RouteSource::Stream(_, Some(intake)) if intake.queue.is_some() => {
                &RouteEngine::SPANS_FIRST
            }
            _ => &RouteEngine::ALL,
        };
        Self {
            driver: Rc::clone(driver),
            source,
            sink,
            head: Vec::new(),
            begun: None,
            engines,
            copies_first: false,
            passed_over: Vec::new(),
            moved: Rc::default(),
            taken: Tally::default(),
            given: Tally::default(),
        }
    }

    /// Uses this engine or fails.
    pub fn only(mut self, engine: RouteEngine) -> Self {
        let place = RouteEngine::ALL.iter().position(|other| *other == engine);
        let place = place.expect("all engines are there");
        self.engines = &RouteEngine::ALL[place..=place];
        self
    }

    /// Leaves out the engines that are better than this one.
    pub fn starting_with(mut self, engine: RouteEngine) -> Self {
        while self.engines.len() > 1 && self.engines[0] != engine {
            self.engines = &self.engines[1..];
        }
        self
    }

    /// Sends these bytes before those of the source, to a socket; with splice in one packet with the first
    /// bytes of a file. They are copied, and counted in [`given`](Self::given) alone.
    pub fn head(mut self, bytes: Vec<u8>) -> Self {
        self.head = bytes;
        self
    }

    /// Bytes of the source that the sink has taken; you can read it while the route runs.
    pub fn progress(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.moved)
    }

    /// The engine that serves, or would be next.
    pub fn engine(&self) -> RouteEngine {
        if self.copies_first { RouteEngine::Copy } else { self.engines[0] }
    }

    /// Engines that were tried and cannot serve here, each with the reason.
    pub fn passed_over(&self) -> &[(RouteEngine, String)] {
        &self.passed_over
    }

    /// Bytes by whether the CPU copied them out of the source. An engine's bytes count once it has ended,
    /// or was dropped midway.
    pub fn taken(&self) -> Tally {
        self.taken
    }

    /// Bytes that the sink has taken, by whether the CPU copied them; splice's count once it has ended, or
    /// was dropped midway.
    pub fn given(&self) -> Tally {
        self.given
    }

    /// Carries all bytes. If you drop it midway, bytes on their way may arrive or not, and bytes taken from
    /// a stream are gone from there.
    ///
    /// If it ends midway, failed or dropped, the peer of a TLS connection that it goes to is not told of a proper end later
    /// (close-notify).
    ///
    /// Nobody else can receive from the source meanwhile. If it has a receiver, the route fails; if a dropped receive
    /// has taken bytes of it, with [`Error::ReceivedLost`](crate::Error::ReceivedLost).
    ///
    /// While the driver has as many operations under way as it was built for, the route waits for room; results that
    /// you have not taken keep theirs. Only a stream that is received into memory ends then, with
    /// [`Error::Busy`](crate::Error::Busy), unless sends to its sink make room; what was received and not sent is lost.
    pub async fn run(&mut self) -> Carried {
        let whole = Whole::to(&self.sink);
        let begun = self.head.len();
        let result = self.serve().await;
        if result.is_ok() || (self.moved.get() == 0 && self.head.len() == begun) {
            whole.or_nothing();
        }
        Carried {
            result,
            bytes: self.moved.get(),
            engine: self.engine(),
            taken: self.taken,
            given: self.given,
        }
    }

    /// Carries what goes at once, without a future: a head and a pipeful of a file (usually 1 MiB) by splice, to a
    /// socket that [never blocks](Socket::never_block) and has no sends under way. Returns whether that was all. If
    /// not, [`run`](Self::run) carries the rest, and reports what went wrong.
    ///
    /// ```no_run
    /// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket, file: &handoff::File) -> handoff::Result<()> {
    /// use handoff::{Route, RouteEngine};
    ///
    /// socket.never_block()?;
    /// let mut route = Route::new(driver, (file, 0..65_536), socket).starting_with(RouteEngine::Splice);
    /// if !route.run_at_once() {
    ///     route.run().await.result?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn run_at_once(&mut self) -> bool {
        let (RouteSource::File(file, range), RouteSink::Socket(socket)) =
            (&self.source, &self.sink)
        else {
            return false;
        };
        let is_free = {
            let queue = socket.shared.queue.borrow();
            queue.is_idle() && queue.refusal().is_none() && !socket.shared.is_ciphered()
        };
        if self.engines[0] != RouteEngine::Splice
            || self.moved.get() > 0
            || self.begun.is_some()
            || range.is_empty()
            || !is_free
            || !socket.shared.never_blocks.get()
        {
            return false;
        }
        let head = self.head.len();
        let (bytes, left) = splice::at_once(&self.driver, &mut self.head, (file, range), socket);
        self.begun = left;
        self.moved.set(bytes);
        self.taken.unknown += bytes;
        self.given.unknown += bytes;
        self.given.copied += (head - self.head.len()) as u64;
        bytes == range.end - range.start
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("source", &self.source)
            .field("sink", &self.sink)
            .field("engines", &self.engines)
            .finish_non_exhaustive()
    }
}
