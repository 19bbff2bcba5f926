//! A socket attached to a driver: the endpoint that sources and sinks of the network share.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use socket2::{Domain, SockRef, Type};

use crate::driver::Inner;
use crate::endpoint::Endpoint;
use crate::engine::Engine;
use crate::engine::auto::{Choice, Chooser};
use crate::engine::msg_zerocopy::{self, Outstanding};
use crate::engine::order::StreamQueue;
use crate::error::{Error, Result};
use crate::outcome::Tally;

/// A connected or bound socket of any family, used through its driver.
///
/// It is closed when the last handle is dropped and nothing is under way on it.
#[derive(Clone)]
pub struct Socket {
    pub(crate) shared: Rc<SocketShared>,
    pub(crate) driver: Rc<Inner>,
}

/// What became of everything sent on a socket so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Messages taken by the kernel whole.
    pub messages: u64,
    /// Bytes whose buffers are back, by what became of them.
    pub returned: Tally,
    /// Return signals: notifications of the ring, and sends that the error queue spoke of.
    pub notifications: u64,
}

pub(crate) struct SocketShared {
    pub(crate) endpoint: Endpoint,
    pub(crate) stream: bool,
    pub(crate) ipv6: bool,
    /// Order of the sends of a stream.
    pub(crate) queue: RefCell<StreamQueue>,
    /// Sends by `MSG_ZEROCOPY` that the error queue has not spoken of yet.
    pub(crate) outstanding: RefCell<Outstanding>,
    /// Notifications of the ring that are to come.
    pub(crate) lent_by_ring: Cell<u32>,
    pub(crate) chooser: RefCell<Chooser>,
    pub(crate) stats: Cell<SendStats>,
    /// Ends of splices, which need it not to block.
    pub(crate) spliced: Cell<u32>,
    /// It blocked before, and does again when the last of these is gone.
    pub(crate) blocks_again: Cell<bool>,
    /// A receiver takes its bytes.
    pub(crate) received: Cell<bool>,
    /// Whether the last send that began by itself or a chain had to wait for room, so that the next does
    /// well to wait first.
    pub(crate) crowded: Cell<bool>,
    /// Whether pages cannot be pinned for a send, so that those in slots are named by their slots,
    /// whatever the kernel charges for it.
    pub(crate) keeps_to_slots: Cell<bool>,
}

impl Socket {
    pub(crate) fn attach(driver: Rc<Inner>, fd: OwnedFd) -> Result<Self> {
        let io = |error| Error::io("looking at a socket", error);
        let socket = SockRef::from(&fd);
        let stream = socket.r#type().map_err(io)? == Type::STREAM;
        let ipv6 = socket.domain().map_err(io)? == Domain::IPV6;
        let chooser = Chooser::new(driver.zero_copy_engine(&fd));
        let shared = SocketShared {
            endpoint: Endpoint::attach(&driver, fd),
            stream,
            ipv6,
            queue: RefCell::default(),
            outstanding: RefCell::default(),
            lent_by_ring: Cell::new(0),
            chooser: RefCell::new(chooser),
            stats: Cell::default(),
            spliced: Cell::new(0),
            blocks_again: Cell::new(false),
            received: Cell::new(false),
            crowded: Cell::new(false),
            keeps_to_slots: Cell::new(false),
        };
        Ok(Self { shared: Rc::new(shared), driver })
    }

    /// Asks for an engine, or leaves the choice to the socket ([`Engine::Auto`], the default).
    ///
    /// # Errors
    ///
    /// When the engine can't work on this socket or this kernel; the choice stays as it was.
    pub fn set_engine(&self, engine: Engine) -> Result<()> {
        let unavailable = |reason| Error::EngineUnavailable { engine: engine.name(), reason };
        match engine {
            Engine::UringZc => self.driver.check_uring_zc(&self.shared.endpoint.fd),
            Engine::MsgZerocopy => msg_zerocopy::claim(&self.shared),
            Engine::Auto | Engine::Copy => Ok(()),
        }
        .map_err(unavailable)?;
        self.shared.chooser.borrow_mut().wish(engine);
        Ok(())
    }

    /// What was sent so far, and what became of it.
    pub fn send_stats(&self) -> SendStats {
        self.shared.stats.get()
    }

    /// The engine that a send of `len` bytes takes now, and why.
    pub fn choice(&self, len: usize) -> Choice {
        self.shared.chooser.borrow().explain(len)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.endpoint.fd.as_fd()
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("fd", &self.shared.endpoint.fd).finish_non_exhaustive()
    }
}

impl Drop for SocketShared {
    fn drop(&mut self) {
        self.outstanding.get_mut().detach(&self.endpoint.fd);
    }
}

impl SocketShared {
    pub(crate) fn count(&self, change: impl FnOnce(&mut SendStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }
}
