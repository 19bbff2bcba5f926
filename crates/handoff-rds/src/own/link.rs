//! A TCP connection that is up, as its reader and its writer share it.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use handoff::{Driver, File};
use socket2::{SockRef, TcpKeepalive};

use super::changes::Changes;
use crate::error::{Error, Result};
use crate::protocol::ConnectionId;

/// A silent connection is asked for a sign of life this often, as in the kernel's RDS.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// After so many without an answer the connection has ended.
const KEEPALIVES: u32 = 5;

/// After so many consecutive sends that are not of copies, acknowledgements are no longer reported.
const OTHERS: u32 = 16;

pub(super) struct Link {
    pub(super) id: ConnectionId,
    pub(super) socket: handoff::Socket,
    /// The same connection, for waiting.
    pub(super) file: File,
    /// There is something to write.
    pub(super) ready: Changes,
    /// There is room for what arrives, or the connection is to end.
    pub(super) stirred: Changes,
    /// Another connection waits until the unread bytes here are read.
    pub(super) awaited: Cell<bool>,
    /// It ends once everything that has arrived is read.
    pub(super) ending: Cell<bool>,
    /// Nothing is written behind the current frame, and the peer is told so.
    pub(super) finishing: Cell<bool>,
    /// The host has forgotten it.
    pub(super) over: Cell<bool>,
    /// Bytes of all frames written.
    pub(super) written: Cell<u64>,
    /// The same, when something was last read.
    written_before: Cell<u64>,
    /// What the peer has acknowledged of them.
    pub(super) acknowledged: Cell<u64>,
    /// How often TCP was asked what the peer has acknowledged, by all connections.
    inquiries: Rc<Cell<u64>>,
    /// What counted as acknowledged before anything was written.
    base: u64,
    /// The error queue tells the library about returned pages.
    tells_of_pages: bool,
    /// Whether the error queue may report acknowledgements of sends, does so now, and ever did.
    may_be_told: Cell<bool>,
    told: Cell<bool>,
    was_told: Cell<bool>,
    /// Consecutive sends that something else reports.
    others: Cell<u32>,
}

impl Link {
    pub(super) fn new(
        driver: &Driver,
        id: ConnectionId,
        socket: impl Into<OwnedFd>,
        sending: handoff::Engine,
        inquiries: &Rc<Cell<u64>>,
    ) -> Result<Self> {
        let own = |error: handoff::Error| Error::NotPossible(error.to_string());
        let socket = socket.into();
        let shared = SockRef::from(&socket);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        shared
            .set_tcp_nodelay(true)
            .and_then(|()| shared.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVES)))
            .and_then(|()| shared.set_tcp_user_timeout(Some(KEEPALIVE * KEEPALIVES)))
            .map_err(Error::io("set up a connection"))?;
        let may_be_told = may_be_told(driver, sending);
        let base = handoff_sys::tcp::bytes_acked(socket.as_fd())
            .map_err(Error::io("ask what TCP has acknowledged"))?;
        let second = socket.try_clone().map_err(Error::io("have a connection twice"))?;
        let socket = driver.socket(socket).map_err(own)?;
        socket.set_engine(sending).map_err(own)?;
        Ok(Self {
            id,
            socket,
            file: driver.file(second).map_err(own)?,
            ready: Changes::default(),
            stirred: Changes::default(),
            awaited: Cell::new(false),
            ending: Cell::new(false),
            finishing: Cell::new(false),
            over: Cell::new(false),
            written: Cell::new(0),
            written_before: Cell::new(0),
            acknowledged: Cell::new(0),
            inquiries: inquiries.clone(),
            base,
            tells_of_pages: !may_be_told && sending != handoff::Engine::UringZc,
            may_be_told: Cell::new(may_be_told),
            told: Cell::new(false),
            was_told: Cell::new(false),
            others: Cell::new(0),
        })
    }

    /// Asks TCP how much the peer has acknowledged; `true` if that is new.
    pub(super) fn look(&self) -> bool {
        if self.acknowledged.get() == self.written.get() {
            return false;
        }
        self.inquiries.set(self.inquiries.get() + 1);
        // The connection's end may count as a byte.
        let acknowledged = handoff_sys::tcp::bytes_acked(self.file.as_fd())
            .map_or(0, |bytes| bytes.saturating_sub(self.base).min(self.written.get()));
        acknowledged > self.acknowledged.replace(acknowledged.max(self.acknowledged.get()))
    }

    /// Bytes that have come and are not read.
    pub(super) fn unread(&self) -> usize {
        unread(&self.file)
    }

    /// Whether the error queue may have woken us for the library: for returned pages.
    pub(super) fn may_wake_for_nothing(&self) -> bool {
        self.tells_of_pages && self.unread() == 0
    }

    /// The next send is of copies, whose acknowledgement only a look would show, or it is another one.
    /// Reports of those too would cost more than they are worth, so they end after some of them.
    pub(super) fn next_is(&self, copies: bool) {
        let others = if copies { 0 } else { self.others.get() + 1 };
        self.others.set(others);
        let wanted = copies || self.told.get() && others < OTHERS;
        if wanted == self.told.get() || !self.may_be_told.get() {
            return;
        }
        match handoff_sys::tcp::set_told_of_acknowledgements(self.file.as_fd(), wanted) {
            Ok(()) => {
                self.told.set(wanted);
                self.was_told.set(true);
            }
            Err(error) => {
                tracing::debug!(%error, "acknowledgements are looked for");
                self.may_be_told.set(false);
            }
        }
    }

    /// Everything there has been read: makes TCP acknowledge it at once, if nothing is sent that would
    /// carry the acknowledgement. The peer's buffers come back only then, and TCP may wait 40 ms for less
    /// than a segment.
    pub(super) fn acknowledge(&self) {
        let written = self.written.get();
        if self.written_before.replace(written) == written
            && let Err(error) = rustix::net::sockopt::set_tcp_quickack(&self.file, true)
        {
            tracing::debug!(%error, "TCP acknowledges in its own time");
        }
    }

    /// Whether acknowledgements of current sends wake the reader.
    pub(super) fn is_told(&self) -> bool {
        self.told.get()
    }

    /// Clears reports of acknowledgements from the error queue, so that the next one wakes the reader;
    /// returns whether there was any.
    pub(super) fn hear(&self) -> bool {
        let mut heard = false;
        if self.was_told.get() {
            while let Ok(Some(_)) = handoff_sys::zerocopy::read_error_queue(self.file.as_fd()) {
                heard = true;
            }
        }
        heard
    }

    /// Makes the reader say when the currently unread bytes are read.
    pub(super) fn catch_up(&self) {
        self.awaited.set(true);
        self.stirred.tell();
    }

    /// Ends once everything that has arrived is read. A peer counts as delivered what TCP has acknowledged, and may
    /// write until it sees the end, so TCP takes nothing more from here on: what comes is answered by a reset.
    pub(super) fn end(&self) {
        if !self.ending.replace(true)
            && let Err(error) = rustix::net::shutdown(&self.file, rustix::net::Shutdown::Both)
        {
            tracing::debug!(%error, "a connection has ended by itself");
        }
        self.stirred.tell();
    }

    /// Makes the writer shut down the sending side once everything is written.
    pub(super) fn finish(&self) {
        self.finishing.set(true);
        self.ready.tell();
    }

    /// Ends at once: discards what TCP still holds, so that lent payloads come back.
    pub(super) fn abort(&self) {
        self.over.set(true);
        abort(&self.file);
        self.ready.tell();
        self.stirred.tell();
    }
}

/// Whether nobody else reads the error queue, and there are copied sends, which nothing else reports.
fn may_be_told(driver: &Driver, sending: handoff::Engine) -> bool {
    match sending {
        handoff::Engine::Copy => true,
        handoff::Engine::Auto => driver.ring_unavailable().is_none(),
        _ => false,
    }
}

/// Bytes that have come on a connection and are not read.
pub(super) fn unread(socket: impl AsFd) -> usize {
    rustix::io::ioctl_fionread(socket).map_or(0, |bytes| bytes as usize)
}

/// Makes TCP abandon a connection with a reset, or the attempt at one.
pub(super) fn abort(socket: impl AsFd) {
    // `ENOTCONN` if the peer was quicker.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    if let Err(error) = rustix::net::connect_unspec(socket) {
        tracing::debug!(%error, "a connection is not aborted");
    }
}
