//! How each engine serves a route: the best one first, and the next where it cannot.

use std::mem;
use std::ops::Range;
use std::rc::Rc;

use super::carry::Counting;
use super::engines::cannot_serve;
use super::held::Held;
#[cfg(feature = "getbuf")]
use super::lent::FromKernel;
use super::supply::{CHUNK, FromFile, FromStream};
use super::{PIECE, Route, RouteEngine, RouteSink, RouteSource, first, splice};
use crate::error::{Error, Result};
#[cfg(feature = "getbuf")]
use crate::getbuf::GetBuf;
use crate::mechanism::Engine;
use crate::memory::Buffer;
use crate::sleep::Sleep;
use crate::socket::Socket;

impl Route {
    /// Carries all bytes, by one engine after another.
    pub(super) async fn serve(&mut self) -> Result<()> {
        self.sink.check()?;
        if !self.head.is_empty() && !matches!(self.sink, RouteSink::Socket(_)) {
            return Err(Error::Invalid("a route to a file or pipe has no head"));
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
            if engine != RouteEngine::Splice || self.sink.is_ciphered() {
                self.send_head().await?;
            }
            let past = self.past_the_cipher(engine).map(str::to_owned);
            let ended = match (past, engine) {
                (Some(reason), _) => {
                    Err(Error::EngineUnavailable { engine: engine.name(), reason })
                }
                #[cfg(feature = "getbuf")]
                (None, RouteEngine::GetBuf) => self.lend().await,
                (None, RouteEngine::Splice) => self.splice().await,
                (None, RouteEngine::Memory | RouteEngine::Copy) => {
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

    /// Why an engine would go past what ciphers, or past the records that are no data, if so.
    fn past_the_cipher(&self, engine: RouteEngine) -> Option<&'static str> {
        if matches!(engine, RouteEngine::Memory | RouteEngine::Copy) {
            return None;
        }
        match (&self.source, &self.sink) {
            (RouteSource::Stream(socket, _), _) if socket.shared.is_ciphered() => {
                Some("what TLS deciphers is received into memory")
            }
            (_, RouteSink::Socket(socket)) if socket.shared.is_ciphered() => match engine {
                RouteEngine::Splice if !socket.shared.is_deciphered_here() => None,
                RouteEngine::Splice => Some("this process ciphers what it has in memory"),
                _ => Some("a lease cannot be sent over TLS"),
            },
            _ => None,
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
            || from.shared.is_ciphered()
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
        if let RouteSource::Pipe(_) = &self.source {
            return Err(Error::EngineUnavailable {
                engine: RouteEngine::GetBuf.name(),
                reason: "the module lends from files and sockets, and not from pipes".to_owned(),
            });
        }
        if self.engines.len() > 1 {
            // Many machines have none, and a look costs a short connection a tenth of its CPU.
            GetBuf::not_missing(&self.driver)?;
        }
        let mut supply = match &self.source {
            RouteSource::File(file, range) => {
                FromKernel::of_file(&self.driver, file, self.rest_of(range.clone()))?
            }
            RouteSource::Stream(socket, _) => FromKernel::of_stream(&self.driver, socket)?,
            RouteSource::Pipe(_) => unreachable!("it was refused"),
        };
        self.carry(&mut supply).await
    }

    async fn through_memory(&mut self, engine: RouteEngine) -> Result<()> {
        // What this process ciphers is read by no request of the ring.
        let registered = engine == RouteEngine::Memory && !self.sink.is_ciphered_here();
        let mut _asked_for = None;
        // A TLS connection sends by the one engine that it has.
        if let (false, false, RouteSink::Socket(socket)) =
            (engine == RouteEngine::Memory, self.sink.is_ciphered(), &self.sink)
        {
            let before = socket.shared.lender.chooser.borrow().wished();
            socket.set_engine(Engine::Copy)?;
            // The socket is its owner's again afterwards, however this ends.
            let count =
                move |socket: &mut Socket| socket.shared.lender.chooser.borrow_mut().wish(before);
            _asked_for = Some(Counting { what: socket.clone(), count });
        }
        match &self.source {
            RouteSource::File(file, range) => {
                let range = Some(self.rest_of(range.clone()));
                let mut supply =
                    FromFile::new(&self.driver, file, range, registered, self.sink.is_ciphered())?;
                self.carry(&mut supply).await
            }
            RouteSource::Pipe(file) => {
                let mut supply =
                    FromFile::new(&self.driver, file, None, registered, self.sink.is_ciphered())?;
                self.carry(&mut supply).await
            }
            RouteSource::Stream(socket, intake) => {
                // A socket or pipe takes several spans together, since each send costs; the last of them makes a
                // piece about as long as allowed. A file takes each by a request of its own.
                let enough = match &self.sink {
                    RouteSink::Socket(_) | RouteSink::Pipe(_) => PIECE - CHUNK,
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
        // The range of a file; a stream or pipe has none.
        let range = match &self.source {
            RouteSource::File(_, range) => Some(self.rest_of(range.clone())),
            RouteSource::Stream(..) | RouteSource::Pipe(_) => None,
        };
        let way = splice::Splicing {
            driver: Rc::clone(&self.driver),
            head: &mut self.head,
            from: match &self.source {
                RouteSource::File(file, _) | RouteSource::Pipe(file) => splice::End::of_file(file),
                RouteSource::Stream(socket, _) => splice::End::of_socket(socket)?,
            },
            range,
            to: match &self.sink {
                RouteSink::File(file, _) | RouteSink::Pipe(file) => splice::End::of_file(file),
                RouteSink::Socket(socket) => splice::End::of_socket(socket)?,
            },
            offset: match &self.sink {
                RouteSink::File(_, offset) => Some(offset + self.moved.get()),
                RouteSink::Socket(_) | RouteSink::Pipe(_) => None,
            },
            begun: self.begun.take(),
        };
        let copied = match &self.sink {
            RouteSink::File(file, _) => Some(!file.is_direct()),
            RouteSink::Socket(_) | RouteSink::Pipe(_) => None,
        };
        let is_ciphered = self.sink.is_ciphered();
        let (before, moved) = (self.moved.get(), &self.moved);
        let (taken, given) = (&mut self.taken, &mut self.given);
        let len = way.head.len();
        let count = |way: &mut splice::Splicing<'_>| {
            let bytes = moved.get() - before;
            taken.unknown += bytes;
            match is_ciphered {
                // The cipher reads the pages.
                true => given.ciphered += bytes,
                false => given.count(bytes, copied),
            }
            given.copied += (len - way.head.len()) as u64;
        };
        let mut way = Counting { what: way, count };
        way.what.run(moved).await
    }

    /// The rest of the source's range.
    fn rest_of(&self, range: Range<u64>) -> Range<u64> {
        range.start + self.moved.get()..range.end
    }
}

/// Waits for sends that were accepted before, which go first.
async fn flush(socket: &Socket) -> Result<()> {
    let is_idle = socket.shared.queue.borrow().is_idle();
    if is_idle { Ok(()) } else { socket.flush().await }
}
