//! The ends of a route: where its bytes come from, and where they go.

use std::ops::Range;

use rustix::fs::{OFlags, fcntl_getfl};

use crate::error::{Error, Result};
use crate::file::File;
use crate::lease::Intake;
use crate::socket::Socket;

/// Where the bytes of a route come from: a socket, with or without an intake, a file and a range, or a pipe; by
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
    /// A pipe, to its end; another file from its own position to its end. Bytes that the route has taken are gone from a
    /// pipe. Nobody else should read it meanwhile, since bytes would go to either.
    Pipe(File),
    /// A stream, to its end. If the intake has an [`RxQueue`](crate::RxQueue), its spans are preferred to
    /// all other engines.
    Stream(Socket, Option<Intake>),
}

/// Where the bytes of a route go: a socket, a file and an offset, or a pipe; by reference.
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
    /// A pipe; another file from its own position on. It is left open. One piece goes at a time, so that they stay in
    /// order.
    Pipe(File),
}

impl From<(&File, Range<u64>)> for RouteSource {
    fn from((file, range): (&File, Range<u64>)) -> Self {
        Self::File(file.clone(), range)
    }
}

/// A pipe.
impl From<&File> for RouteSource {
    fn from(pipe: &File) -> Self {
        Self::Pipe(pipe.clone())
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

/// A pipe.
impl From<&File> for RouteSink {
    fn from(pipe: &File) -> Self {
        Self::Pipe(pipe.clone())
    }
}

impl From<(&File, u64)> for RouteSink {
    fn from((file, offset): (&File, u64)) -> Self {
        Self::File(file.clone(), offset)
    }
}

impl RouteSink {
    /// Whether sends before the route's pieces are under way, such as its head.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self, Self::Socket(socket) if !socket.shared.queue.borrow().is_idle())
    }

    /// Whether its bytes are ciphered.
    pub(super) fn is_ciphered(&self) -> bool {
        matches!(self, Self::Socket(socket) if socket.shared.is_ciphered())
    }

    /// Whether this process ciphers them.
    pub(super) fn is_ciphered_here(&self) -> bool {
        matches!(self, Self::Socket(socket) if socket.shared.is_deciphered_here())
    }

    /// Whether pieces could overtake each other on their way.
    pub(super) fn takes_one_at_a_time(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    /// Pieces are written at their places, in any order; on a stream nothing overtakes a lane.
    pub(super) fn check(&self) -> Result<()> {
        let file = match self {
            Self::File(file, _) => file,
            Self::Pipe(_) => return Ok(()),
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
