//! The engines of routes, best first, and when one cannot serve.

use std::fmt;

use crate::error::Error;

/// A way to carry bytes from a source to a sink.
///
/// The first 16 KiB of a stream to a socket are copied as long as they come in pieces of less than 4 KiB, which costs less
/// than lending them. [`Route::only`](crate::Route::only) and an engine that the sink is asked for
/// ([`Socket::set_engine`](crate::Socket::set_engine)) exclude that.
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
    /// A driver that has not found the device does not look for it again, but for
    /// [`Driver::get_buf`](crate::Driver::get_buf), and for a route that may use [only](crate::Route::only) this engine.
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
    pub(super) const SPANS_FIRST: [Self; 4] =
        [Self::Memory, Self::GetBuf, Self::Splice, Self::Copy];
    #[cfg(not(feature = "getbuf"))]
    pub(super) const SPANS_FIRST: [Self; 3] = [Self::Memory, Self::Splice, Self::Copy];

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

/// Why an engine cannot serve, if that is what the error is about.
pub(super) fn cannot_serve(error: &Error) -> Option<String> {
    match error {
        Error::EngineUnavailable { reason, .. } | Error::NoRing { reason, .. } => {
            Some(reason.clone())
        }
        Error::Memlock { .. } => Some(error.to_string()),
        _ => None,
    }
}
