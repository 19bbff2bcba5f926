//! The measured end, where it is ours: the library on the calling thread, with the kernel's cipher or rustls's.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fs::File,
    future::{Future, Ready, pending, ready},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{Either, select};
use handoff::{
    Buffer, Driver, Region, RingUse, Socket, Tally, Transfer,
    tls::{Ciphering, TlsAcceptor, TlsConnector},
};
use handoff_http::{LentBody, Limits, RequestBody, Server};
use http::{Request, Response};
use http_body_util::Full;
use rustix::fs::OFlags;
use tower_service::Service;

use super::{
    far::{Far, receive},
    identity::Identity,
    measured::Works,
};
use crate::network::TIMEOUT;

/// Pieces of memory under way.
const DEPTH: usize = 2;
/// How long a server serves between two looks at its client.
const TURN: Duration = Duration::from_millis(2);

fn line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn driver() -> Result<Driver, String> {
    Driver::builder().ring(RingUse::Require).build().map_err(line)
}

/// What an established connection is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Send,
    SendFile,
    Receive,
    ReceiveFile,
    Ping,
}

/// One end of a connection.
pub(super) struct Ours {
    free: Vec<Buffer>,
    socket: Socket,
    file: Option<handoff::File>,
    /// Bytes of the file, and where the next piece of it is.
    len: u64,
    at: u64,
    driver: Driver,
    used: Use,
    piece: u64,
    tally: Tally,
}

impl Ours {
    /// Makes the handshake. A piece has this many bytes, and so many pieces are in the file.
    ///
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn new(
        stream: TcpStream,
        used: Use,
        (piece, len): (u64, u64),
        file: &Path,
        identity: &Identity,
        ciphering: Ciphering,
    ) -> Result<Self, String> {
        let driver = driver()?;
        let socket = driver.socket(stream).map_err(line)?;
        let socket = match used {
            Use::Send | Use::SendFile | Use::Ping => {
                let connector = identity.connector(ciphering)?;
                let connecting = connector.connect(socket, Identity::name());
                driver.block_on(driver.timeout(TIMEOUT, connecting))
            }
            Use::Receive | Use::ReceiveFile => {
                let acceptor = identity.acceptor(ciphering)?;
                driver.block_on(driver.timeout(TIMEOUT, acceptor.accept(socket)))
            }
        };
        let socket = socket.map_err(line)?.map_err(line)?.map_err(line)?.0;
        let opened = |file: std::io::Result<File>| -> Result<handoff::File, String> {
            driver.file(file.map_err(line)?).map_err(line)
        };
        let file = match used {
            Use::SendFile => Some(opened(File::open(file))?),
            Use::ReceiveFile => {
                let mut options = File::options();
                options.read(true).write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
                Some(opened(options.open(file))?)
            }
            Use::Send | Use::Receive | Use::Ping => None,
        };
        let mut free = Vec::new();
        if used != Use::SendFile {
            let mut region = Region::anonymous(DEPTH * piece as usize).map_err(line)?;
            driver.register(&region).map_err(line)?;
            free = region.chunks(piece as usize);
        }
        let tally = Tally::default();
        Ok(Self { free, socket, file, len, at: 0, driver, used, piece, tally })
    }

    fn next_place(&mut self) -> u64 {
        let here = self.at;
        self.at = (here + self.piece) % self.len;
        here
    }

    fn buffer(&mut self) -> Result<Buffer, String> {
        let mut buffer = self.free.pop().ok_or("all memory is under way")?;
        buffer.set_len(buffer.capacity());
        Ok(buffer)
    }

    fn send(&mut self, pieces: u64) -> Result<(), String> {
        let driver = self.driver.clone();
        let sent = driver.block_on(async {
            let mut under_way = VecDeque::new();
            for piece in 0..pieces + DEPTH as u64 {
                if piece < pieces {
                    if under_way.len() == DEPTH {
                        self.finish(under_way.pop_front()).await?;
                    }
                    let buffer = self.buffer()?;
                    under_way.push_back(self.socket.send(buffer).map_err(line)?);
                } else {
                    self.finish(under_way.pop_front()).await?;
                }
            }
            Ok(())
        });
        sent.map_err(line)?
    }

    async fn finish(&mut self, sending: Option<handoff::Sending<Buffer>>) -> Result<(), String> {
        let Some(sending) = sending else { return Ok(()) };
        let finished = sending.await.map_err(line)?;
        finished.sent.map_err(line)?;
        self.tally += finished.receipt.tally;
        self.free.push(finished.buffer);
        Ok(())
    }

    fn send_file(&mut self, pieces: u64) -> Result<(), String> {
        for _ in 0..pieces {
            let here = self.next_place();
            let file = self.file.as_ref().ok_or("no file")?;
            let carried =
                self.driver.block_on(self.socket.send_file(file, here..here + self.piece));
            let carried = carried.map_err(line)?;
            carried.result.map_err(line)?;
            self.tally += carried.given;
            // What is read into memory first is copied twice.
            self.tally.copied += carried.taken.copied;
        }
        Ok(())
    }

    fn receive(&mut self, pieces: u64) -> Result<(), String> {
        let mut written: VecDeque<Transfer<Buffer>> = VecDeque::new();
        for _ in 0..pieces {
            if self.free.is_empty() {
                self.settle(&mut written)?;
            }
            let buffer = self.buffer()?;
            let buffer = receive(&self.driver, &self.socket, buffer)?;
            if self.used == Use::ReceiveFile {
                let here = self.next_place();
                let file = self.file.as_ref().ok_or("no file")?;
                written.push_back(file.write_at(buffer, here).map_err(line)?);
            } else {
                self.free.push(buffer);
            }
        }
        while !written.is_empty() {
            self.settle(&mut written)?;
        }
        Ok(())
    }

    /// Waits for the oldest write.
    fn settle(&mut self, written: &mut VecDeque<Transfer<Buffer>>) -> Result<(), String> {
        let Some(oldest) = written.pop_front() else { return Err("no memory".to_owned()) };
        let over = self.driver.block_on(oldest).map_err(line)?.map_err(line)?;
        over.result.map_err(line)?;
        self.free.push(over.buffer);
        Ok(())
    }

    fn ping(&mut self, pieces: u64) -> Result<(), String> {
        for _ in 0..pieces {
            self.send(1)?;
            let buffer = self.buffer()?;
            let back = receive(&self.driver, &self.socket, buffer)?;
            self.free.push(back);
        }
        Ok(())
    }
}

impl Works for Ours {
    fn work(&mut self, pieces: u64, _: &Far) -> Result<(), String> {
        match self.used {
            Use::Send => self.send(pieces),
            Use::SendFile => self.send_file(pieces),
            Use::Receive | Use::ReceiveFile => self.receive(pieces),
            Use::Ping => self.ping(pieces),
        }
    }

    fn tally(&self) -> Option<Tally> {
        (self.tally.total() > 0).then_some(self.tally)
    }
}

/// A server that accepts, makes the handshake, and waits for the client to leave.
pub(super) struct Accepting {
    listener: handoff::Listener,
    driver: Driver,
    acceptor: TlsAcceptor,
}

impl Accepting {
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn new(
        listener: TcpListener,
        identity: &Identity,
        ciphering: Ciphering,
    ) -> Result<Self, String> {
        let driver = driver()?;
        let listener = driver.listen(listener).map_err(line)?;
        Ok(Self { listener, driver, acceptor: identity.acceptor(ciphering)? })
    }
}

impl Works for Accepting {
    fn work(&mut self, pieces: u64, _: &Far) -> Result<(), String> {
        let Self { listener, driver, acceptor } = self;
        let work = async {
            for _ in 0..pieces {
                let (socket, _) = listener.accept().await.map_err(line)?;
                let (socket, _) = acceptor.accept(socket).await.map_err(line)?;
                let end = socket.receive_into(Buffer::from(vec![0])).map_err(line)?;
                end.await.map_err(line)?;
            }
            Ok(())
        };
        driver.block_on(driver.timeout(TIMEOUT, work)).map_err(line)?.map_err(line)?
    }
}

/// A client that connects, makes the handshake, and leaves.
pub(super) struct Connecting {
    driver: Driver,
    connector: TlsConnector,
    connect: Box<dyn Fn() -> Result<TcpStream, String>>,
}

impl Connecting {
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn new(
        connect: impl Fn() -> Result<TcpStream, String> + 'static,
        identity: &Identity,
        ciphering: Ciphering,
    ) -> Result<Self, String> {
        let connector = identity.connector(ciphering)?;
        Ok(Self { driver: driver()?, connector, connect: Box::new(connect) })
    }
}

impl Works for Connecting {
    fn work(&mut self, pieces: u64, _: &Far) -> Result<(), String> {
        for _ in 0..pieces {
            let socket = self.driver.socket((self.connect)()?).map_err(line)?;
            let connecting = self.connector.connect(socket, Identity::name());
            let connected = self.driver.block_on(self.driver.timeout(TIMEOUT, connecting));
            let (socket, _) = connected.map_err(line)?.map_err(line)?.map_err(line)?;
            socket.shutdown(Shutdown::Write).map_err(line)?;
        }
        Ok(())
    }
}

/// A service that answers all requests with one file.
#[derive(Clone)]
struct Answers(Arc<File>, u64);

impl Service<Request<RequestBody>> for Answers {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody>) -> Self::Future {
        let mut response = Response::new(Full::default());
        response.extensions_mut().insert(LentBody::file(Arc::clone(&self.0), 0..self.1));
        ready(Ok(response))
    }
}

/// The library's own server of HTTPS.
pub(super) struct Serving {
    driver: Driver,
    serving: Pin<Box<dyn Future<Output = ()>>>,
}

impl Serving {
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn new(
        listener: TcpListener,
        (file, len): (&Path, u64),
        identity: &Identity,
        ciphering: Ciphering,
    ) -> Result<Self, String> {
        let driver = driver()?;
        let server = Server::new(&driver, Limits { connections: 16, ..Limits::default() });
        let server = server.over_tls(identity.acceptor(ciphering)?);
        let listener = driver.listen(listener).map_err(line)?;
        let answers = Answers(Arc::new(File::open(file).map_err(line)?), len);
        let serving = async move { server.serve(listener, answers, pending()).await };
        Ok(Self { driver, serving: Box::pin(serving) })
    }
}

impl Works for Serving {
    fn work(&mut self, _: u64, far: &Far) -> Result<(), String> {
        let Self { driver, serving } = self;
        while !far.is_through() {
            let over = std::pin::pin!(driver.sleep(TURN));
            match driver.block_on(select(serving.as_mut(), over)).map_err(line)? {
                Either::Right((slept, _)) => slept.map_err(line)?,
                Either::Left(_) => return Err("the server has ended".to_owned()),
            }
        }
        Ok(())
    }
}
