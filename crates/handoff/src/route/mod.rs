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
//! - memory is bounded: at most [`PIECES`] pieces of [`PIECE`] bytes are on their way, so a slow sink slows
//!   its source.
//!
//! Minimum kernel, capability and return signal are those of the engine.

mod cold;
mod delivery;
mod first;
mod held;
#[cfg(feature = "getbuf")]
mod lent;
mod splice;
mod supply;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use futures_lite::future::yield_now;
use rustix::fs::{OFlags, fcntl_getfl};

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::file::File;
#[cfg(feature = "getbuf")]
use crate::getbuf::GetBuf;
use crate::lease::Intake;
use crate::mechanism::Engine;
use crate::memory::Buffer;
use crate::outcome::Tally;
use crate::reactor::Reactor;
use crate::sleep::Sleep;
use crate::socket::Socket;
use delivery::{Given, Giving};
use held::Held;
#[cfg(feature = "getbuf")]
use lent::FromKernel;
use supply::{CHUNK, FromFile, FromStream, Supply};

/// The most pieces on their way at once.
pub(crate) const PIECES: usize = 16;
/// The most bytes of a piece.
pub(crate) const PIECE: usize = 256 << 10;

/// Where the bytes of a route come from: a socket, with or without an intake, or a file and a range; by
/// reference.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Region, Route};
///
/// let driver = Driver::new()?;
/// # let from = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// # let to = driver.socket(std::net::TcpStream::connect("192.0.2.2:9000")?)?;
/// # let file = driver.file(std::fs::File::open("disk.img")?)?;
/// let pool = driver.pool(Region::anonymous(1 << 20)?, 1 << 16)?;
/// let of_file = Route::new(&driver, (&file, 0..4096), &to);
/// let of_stream = Route::new(&driver, &from, &to);
/// let by_way_of_a_pool = Route::new(&driver, (&from, (&pool).into()), &to);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub enum RouteSource {
    /// A range of a file or block device; less if the file ends before.
    File(File, Range<u64>),
    /// A stream, to its end. If the intake has an [`RxQueue`](crate::RxQueue), its spans are preferred to
    /// all other engines.
    Stream(Socket, Option<Intake>),
}

/// Where the bytes of a route go: a socket, or a file and an offset; by reference.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Route};
///
/// let driver = Driver::new()?;
/// # let from = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// # let to = driver.socket(std::net::TcpStream::connect("192.0.2.2:9000")?)?;
/// let file = driver.file(std::fs::File::create("received")?)?;
/// let to_socket = Route::new(&driver, &from, &to);
/// let to_file_from_byte_4096 = Route::new(&driver, &from, (&file, 4096));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub enum RouteSink {
    /// A connected socket. It is left open.
    Socket(Socket),
    /// A file or block device, from this offset on; not a file opened for appending.
    File(File, u64),
}

impl From<(&File, Range<u64>)> for RouteSource {
    fn from((file, range): (&File, Range<u64>)) -> Self {
        Self::File(file.clone(), range)
    }
}

impl From<&Socket> for RouteSource {
    fn from(socket: &Socket) -> Self {
        Self::Stream(socket.clone(), None)
    }
}

impl From<(&Socket, Intake)> for RouteSource {
    fn from((socket, intake): (&Socket, Intake)) -> Self {
        Self::Stream(socket.clone(), Some(intake))
    }
}

impl From<&Socket> for RouteSink {
    fn from(socket: &Socket) -> Self {
        Self::Socket(socket.clone())
    }
}

impl From<(&File, u64)> for RouteSink {
    fn from((file, offset): (&File, u64)) -> Self {
        Self::File(file.clone(), offset)
    }
}

impl Socket {
    /// Sends a range of a file, or as much of it as the file has, by the best engine that works: a [`Route`],
    /// run to its end. Its bytes follow the sends accepted before; wait for its end before you send more.
    pub async fn send_file(&self, file: &File, range: Range<u64>) -> Carried {
        Route::on(&self.driver, (file, range).into(), self.into()).run().await
    }
}

/// A way to carry bytes from a source to a sink.
///
/// The first 16 KiB of a stream to a socket are copied as long as they come in pieces of less than 4 KiB, which costs less
/// than lending them. [`Route::only`] and an engine that the sink is asked for ([`Socket::set_engine`]) exclude that.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Route, RouteEngine};
///
/// # let driver = Driver::new()?;
/// # let file = driver.file(std::fs::File::open("disk.img")?)?;
/// # let socket = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// let mut route = Route::new(&driver, (&file, 0..u64::MAX), &socket).only(RouteEngine::Splice);
/// let carried = driver.block_on(route.run())?;
/// assert_eq!(carried.engine, RouteEngine::Splice);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteEngine {
    /// The kernel's own buffers are lent into the ring ([`GetBuf`](crate::GetBuf)), and sent or
    /// written from there.
    ///
    /// A driver that has not found the device does not look for it again, but for [`Driver::get_buf`], and for
    /// a route that may use [only](Route::only) this engine.
    #[cfg(feature = "getbuf")]
    GetBuf,
    /// splice(2) through a pipe. Nobody reports when the pages are free again, nor whether they were
    /// copied.
    Splice,
    /// Through memory registered with the ring: the route reads or receives into it, and lends it to the
    /// sink.
    Memory,
    /// Through memory, and copied out of it. Also what has carried a stream whose pieces were few and small, where
    /// several engines could serve.
    Copy,
}

impl RouteEngine {
    /// Best first.
    #[cfg(feature = "getbuf")]
    pub const ALL: [Self; 4] = [Self::GetBuf, Self::Splice, Self::Memory, Self::Copy];
    /// Best first.
    #[cfg(not(feature = "getbuf"))]
    pub const ALL: [Self; 3] = [Self::Splice, Self::Memory, Self::Copy];

    /// With spans of an rx queue as the first choice.
    #[cfg(feature = "getbuf")]
    const SPANS_FIRST: [Self; 4] = [Self::Memory, Self::GetBuf, Self::Splice, Self::Copy];
    #[cfg(not(feature = "getbuf"))]
    const SPANS_FIRST: [Self; 3] = [Self::Memory, Self::Splice, Self::Copy];

    /// The name on command lines and in tables.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "getbuf")]
            Self::GetBuf => "get-buf",
            Self::Splice => "splice",
            Self::Memory => "memory",
            Self::Copy => "copy",
        }
    }
}

impl fmt::Display for RouteEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
    /// Nobody else can receive from the source meanwhile. If it has a receiver, the route fails; if a dropped receive
    /// has taken bytes of it, with [`Error::ReceivedLost`].
    ///
    /// While the driver has as many operations under way as it was built for, the route waits for room; results that
    /// you have not taken keep theirs. Only a stream that is received into memory ends then, with [`Error::Busy`],
    /// unless sends to its sink make room; what was received and not sent is lost.
    pub async fn run(&mut self) -> Carried {
        let result = self.serve().await;
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
            queue.is_idle() && queue.refusal().is_none()
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

    async fn serve(&mut self) -> Result<()> {
        self.sink.check()?;
        if !self.head.is_empty() && matches!(self.sink, RouteSink::File(..)) {
            return Err(Error::Invalid("a route to a file has no head"));
        }
        let mut held = Held::take(&self.source).await?;
        if self.copy_first().await? {
            return Ok(());
        }
        loop {
            let engine = self.engines[0];
            if held.is_none() {
                held = Held::take(&self.source).await?;
            }
            if engine != RouteEngine::Splice {
                self.send_head().await?;
            }
            let ended = match engine {
                #[cfg(feature = "getbuf")]
                RouteEngine::GetBuf => self.lend().await,
                RouteEngine::Splice => self.splice().await,
                RouteEngine::Memory | RouteEngine::Copy => {
                    // Its receiver takes the place at once.
                    held = None;
                    self.through_memory(engine).await
                }
            };
            let reason = ended.as_ref().err().and_then(cannot_serve);
            let Some(reason) = reason.filter(|_| self.engines.len() > 1) else { return ended };
            tracing::info!(%engine, %reason, "a route goes on by the next engine");
            self.engines = &self.engines[1..];
            self.passed_over.push((engine, reason));
        }
    }

    /// Copies the first pieces of a stream, if the engine is ours to choose, the sink is not asked to lend, and the
    /// stream does not come by an rx queue. Returns whether that was all.
    async fn copy_first(&mut self) -> Result<bool> {
        self.copies_first = false;
        let (RouteSource::Stream(from, intake), RouteSink::Socket(to)) = (&self.source, &self.sink)
        else {
            return Ok(false);
        };
        let by_queue = intake.as_ref().is_some_and(|intake| intake.queue.is_some());
        let wish = to.shared.lender.chooser.borrow().wished();
        if self.engines.len() == 1
            || by_queue
            || !matches!(wish, Engine::Auto | Engine::Copy)
            || !from.shared.stream
            || !self.head.is_empty()
            || self.moved.get() > 0
        {
            return Ok(false);
        }
        flush(to).await?;
        self.copies_first = true;
        let all = first::copy(from, to, &self.moved, &mut self.taken, &mut self.given).await?;
        self.copies_first = all;
        Ok(all)
    }

    /// Sends the head by itself.
    async fn send_head(&mut self) -> Result<()> {
        let RouteSink::Socket(socket) = &self.sink else { return Ok(()) };
        if self.head.is_empty() {
            return Ok(());
        }
        loop {
            let head = Buffer::from(mem::take(&mut self.head));
            let copied = head.len() as u64;
            let Err(refused) = socket.send(head).map(drop) else {
                // It continues though nobody waits for it, and later bytes follow it.
                self.given.copied += copied;
                return Ok(());
            };
            self.head = refused.buffer.to_vec();
            match refused.error {
                Error::Busy { .. } => Sleep::for_room(&self.driver).await?,
                error => return Err(error),
            }
        }
    }

    #[cfg(feature = "getbuf")]
    async fn lend(&mut self) -> Result<()> {
        if self.engines.len() > 1 {
            // Many machines have none, and a look costs a short connection a tenth of its CPU.
            GetBuf::not_missing(&self.driver)?;
        }
        let mut supply = match &self.source {
            RouteSource::File(file, range) => {
                FromKernel::of_file(&self.driver, file, self.rest_of(range.clone()))?
            }
            RouteSource::Stream(socket, _) => FromKernel::of_stream(&self.driver, socket)?,
        };
        self.carry(&mut supply).await
    }

    async fn through_memory(&mut self, engine: RouteEngine) -> Result<()> {
        let registered = engine == RouteEngine::Memory;
        let mut _asked_for = None;
        if let (false, RouteSink::Socket(socket)) = (registered, &self.sink) {
            let before = socket.shared.lender.chooser.borrow().wished();
            socket.set_engine(Engine::Copy)?;
            // The socket is its owner's again afterwards, however this ends.
            let count = move |socket: &mut Socket| socket.shared.lender.chooser.borrow_mut().wish(before);
            _asked_for = Some(Counting { what: socket.clone(), count });
        }
        match &self.source {
            RouteSource::File(file, range) => {
                let mut supply =
                    FromFile::new(&self.driver, file, self.rest_of(range.clone()), registered)?;
                self.carry(&mut supply).await
            }
            RouteSource::Stream(socket, intake) => {
                // A socket takes several spans together, since each send costs; the last of them makes a
                // piece about as long as allowed. A file takes each by a request of its own.
                let enough = match &self.sink {
                    RouteSink::Socket(_) => PIECE - CHUNK,
                    RouteSink::File(..) => 0,
                };
                let mut supply =
                    FromStream::new(&self.driver, socket, intake.clone(), registered, enough)?;
                self.carry(&mut supply).await
            }
        }
    }

    async fn splice(&mut self) -> Result<()> {
        if let RouteSink::Socket(socket) = &self.sink {
            flush(socket).await?;
        }
        // The range of a file; a stream has none.
        let range = match &self.source {
            RouteSource::File(_, range) => Some(self.rest_of(range.clone())),
            RouteSource::Stream(..) => None,
        };
        let way = splice::Splicing {
            driver: Rc::clone(&self.driver),
            head: &mut self.head,
            from: match &self.source {
                RouteSource::File(file, _) => splice::End::of_file(file),
                RouteSource::Stream(socket, _) => splice::End::of_socket(socket)?,
            },
            range,
            to: match &self.sink {
                RouteSink::File(file, _) => splice::End::of_file(file),
                RouteSink::Socket(socket) => splice::End::of_socket(socket)?,
            },
            offset: match &self.sink {
                RouteSink::File(_, offset) => Some(offset + self.moved.get()),
                RouteSink::Socket(_) => None,
            },
            begun: self.begun.take(),
        };
        let copied = match &self.sink {
            RouteSink::File(file, _) => Some(!file.is_direct()),
            RouteSink::Socket(_) => None,
        };
        let (before, moved) = (self.moved.get(), &self.moved);
        let (taken, given) = (&mut self.taken, &mut self.given);
        let len = way.head.len();
        let count = |way: &mut splice::Splicing<'_>| {
            let bytes = moved.get() - before;
            taken.unknown += bytes;
            given.count(bytes, copied);
            given.copied += (len - way.head.len()) as u64;
        };
        let mut way = Counting { what: way, count };
        way.what.run(moved).await
    }

    /// The rest of the source's range.
    fn rest_of(&self, range: Range<u64>) -> Range<u64> {
        range.start + self.moved.get()..range.end
    }

    /// Hands on what there is, as pieces come back; ends when all are back.
    async fn carry<S: Supply>(&mut self, supply: &mut S) -> Result<()> {
        let mut out: VecDeque<Giving<S::Piece>> = VecDeque::new();
        let mut ended = None;
        // A piece for which the driver had no room.
        let mut kept = None;
        let mut pause: Option<Sleep> = None;
        let driver = &self.driver;
        let taken = &mut self.taken;
        let supply = Counting { what: supply, count: |supply| *taken += supply.taken() };
        poll_fn(|context| {
            // Without a ring pieces come and go at once; the thread's other futures get their turn all the
            // same.
            for _ in 0..PIECES {
                while let Some(first) = out.front_mut()
                    && let Poll::Ready(given) = first.poll(context)
                {
                    out.pop_front();
                    let Given { piece, bytes, tally, result } = given;
                    self.moved.update(|moved| moved + bytes as u64);
                    self.given += tally;
                    supply.what.put_back(piece);
                    // The end of the source is no success while the sink may fail.
                    if !matches!(ended, Some(Err(_)))
                        && let Err(error) = result
                    {
                        ended = Some(Err(error));
                    }
                }
                match &mut ended {
                    Some(_) if !out.is_empty() => return Poll::Pending,
                    Some(_) => return Poll::Ready(ended.take().expect("was just looked at")),
                    None if out.len() >= PIECES => return Poll::Pending,
                    None => {}
                }
                if let Some(waiting) = &mut pause {
                    let Poll::Ready(waited) = Pin::new(waiting).poll(context) else {
                        return Poll::Pending;
                    };
                    pause = None;
                    if let Err(error) = waited {
                        ended = Some(Err(error));
                        continue;
                    }
                }
                let next = match kept.take() {
                    Some(piece) => Poll::Ready(Some(Ok(piece))),
                    None => supply.what.poll_next(context),
                };
                let started = match next {
                    Poll::Ready(Some(Ok(piece))) => {
                        let lent: usize = out.iter().map(Giving::bytes).sum();
                        let position = self.moved.get() + lent as u64;
                        let started = Giving::start(&self.sink, piece, position);
                        started.map(|giving| out.push_back(giving)).map_err(|refused| {
                            kept = Some(refused.buffer);
                            refused.error
                        })
                    }
                    Poll::Ready(Some(Err(error))) => Err(error),
                    Poll::Ready(None) => {
                        ended = Some(Ok(()));
                        Ok(())
                    }
                    Poll::Pending => return Poll::Pending,
                };
                match started {
                    Ok(()) => {}
                    // One that is back makes room.
                    Err(Error::Busy { .. }) if !out.is_empty() => return Poll::Pending,
                    Err(Error::Busy { .. }) if !S::KEEPS_ROOM || self.sink.is_sending() => {
                        pause = Some(Sleep::for_room(driver));
                    }
                    Err(error) => ended = Some(Err(error)),
                }
            }
            // Also for callers that poll after each turn and have no waker: the next turn does not sleep.
            driver.news.set(true);
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// A supply, or something else that counts or must be put back: this does it when the supply has served,
/// also if its future is dropped midway.
struct Counting<T, F: FnMut(&mut T)> {
    what: T,
    count: F,
}

impl<T, F: FnMut(&mut T)> Drop for Counting<T, F> {
    fn drop(&mut self) {
        (self.count)(&mut self.what);
    }
}

/// Waits for sends that were accepted before, which go first.
async fn flush(socket: &Socket) -> Result<()> {
    let is_idle = socket.shared.queue.borrow().is_idle();
    if is_idle { Ok(()) } else { socket.flush().await }
}

/// Lets the thread's other futures have their turn. Also for callers that poll after each turn and have no waker: the
/// next turn does not sleep.
async fn let_others_run(driver: &Reactor) {
    driver.news.set(true);
    yield_now().await;
}

/// Why an engine cannot serve, if that is what the error is about.
fn cannot_serve(error: &Error) -> Option<String> {
    match error {
        Error::EngineUnavailable { reason, .. } | Error::NoRing { reason, .. } => {
            Some(reason.clone())
        }
        Error::Memlock { .. } => Some(error.to_string()),
        _ => None,
    }
}

impl RouteSink {
    /// Whether sends before the route's pieces are under way, such as its head.
    fn is_sending(&self) -> bool {
        matches!(self, Self::Socket(socket) if !socket.shared.queue.borrow().is_idle())
    }

    /// Pieces are written at their places, in any order; on a stream nothing overtakes a lane.
    fn check(&self) -> Result<()> {
        let file = match self {
            Self::File(file, _) => file,
            Self::Socket(socket) => {
                return socket.shared.queue.borrow().refusal().map_or(Ok(()), Err);
            }
        };
        let flags =
            fcntl_getfl(file).map_err(|error| Error::io("looking at a file", error.into()))?;
        if flags.contains(OFlags::APPEND) {
            return Err(Error::Invalid(
                "a file that is opened for appending takes bytes at its end only: open it without O_APPEND",
            ));
        }
        Ok(())
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
