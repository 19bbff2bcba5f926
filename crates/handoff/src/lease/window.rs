//! A window: our address space, into which the kernel maps the pages that a TCP socket received.
//!
//! Minimum kernel: 4.18 (`TCP_ZEROCOPY_RECEIVE`). Capability: none. NIC: payload in whole pages, so
//! header/data split, and segments of a page (an MTU of 4096 bytes and the headers). Return signal: we hold
//! the kernel's pages; they go when their place is mapped over, or the window goes.
//!
//! Contracts:
//! - a sender on this machine may still write to a page that it sent, so spans give a [`View`](crate::View).

use std::rc::Rc;

use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::net;

use super::pending::Pending;
use super::pool::PoolShared;
use crate::error::{Error, Result};
use crate::memory::{map, own, page_size};
use crate::ring::{Io, Key};

/// The longest chunk for bytes that are copied.
const CHUNK: usize = 64 << 10;

/// Places of whole pages, shared by the sockets that receive into it, each with a chunk of memory for bytes
/// that do not fill pages.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// let window = driver.window(16, 1 << 20)?;
/// let mut receiver = socket.receive_mapped(&window)?;
/// while let Some(span) = receiver.next_span().await {
///     println!("{} bytes, mapped where they fill pages", span?.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Window {
    pub(crate) pages: Rc<PoolShared>,
    pub(crate) rest: Rc<PoolShared>,
}

impl Window {
    pub(crate) fn new(
        io: &Rc<Io>,
        pending: &Rc<Pending>,
        places: usize,
        place: usize,
    ) -> Result<Self> {
        let len =
            places.checked_mul(place).filter(|len| *len > 0 && place.is_multiple_of(page_size()));
        let len = len.ok_or(Error::Invalid(
            "a window has at least one place, of whole pages, and fits the address space",
        ))?;
        let mapping = || -> Result<_, rustix::io::Errno> {
            // Any TCP socket makes such a mapping, and all may use it. A socket that never connects keeps
            // no connection open while somebody holds a span.
            let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
            // SAFETY: the kernel chooses an address that is free.
            unsafe {
                mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &socket, 0)
            }
        };
        let start = mapping().map_err(|error| Error::io("mapping a TCP socket", error.into()))?;
        let start = std::ptr::NonNull::new(start.cast()).expect("never mapped at zero");
        // Nobody reads more of it than the kernel says it has mapped.
        let pages = PoolShared::of_list(io, pending, own(start, len, false), place, places);
        let chunk = place.min(CHUNK);
        let rest = map(chunk * places, MapFlags::PRIVATE, None)
            .map_err(|error| Error::io("mapping memory beside a window", error))?;
        let rest = PoolShared::of_list(io, pending, rest, chunk, places);
        Ok(Self { pages: Rc::new(pages), rest: Rc::new(rest) })
    }

    pub(crate) fn is_of(&self, pending: &Rc<Pending>) -> bool {
        self.pages.is_of(pending)
    }

    pub(crate) fn forget(&self, receiver: Key) {
        self.pages.forget(receiver);
        self.rest.forget(receiver);
    }

    /// Places and chunks with bytes that nobody has dropped, whether or not you have taken them.
    pub fn held(&self) -> usize {
        self.pages.held() + self.rest.held()
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("held", &self.held()).finish_non_exhaustive()
    }
}
