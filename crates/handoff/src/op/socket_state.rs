//! State shared by operations on a socket: the socket, the order of its sends, what it has learnt.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
#[cfg(all(feature = "tls", feature = "tokio"))]
use std::io::{self, IoSlice};
#[cfg(all(feature = "tls", feature = "tokio"))]
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use handoff_sys::sqe;
use io_uring::{opcode, squeue};
use rustix::net::connect_unspec;
use rustix::net::sockopt::set_tcp_user_timeout;
#[cfg(all(feature = "tls", feature = "tokio"))]
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::{Domain, Protocol, SockRef, Type};

use super::chooser::Chooser;
#[cfg(feature = "tls")]
use super::cipher::{Cipher, Stop};
use super::lender::Lender;
use super::outstanding::Outstanding;
use super::reception::Reception;
use super::waiter::Waiters;
use crate::error::{Error, Result};
use crate::ring::endpoint::with_target;
use crate::ring::{Endpoint, Io, Key};
use crate::unix::SocketFile;

/// Facts that decide how a socket is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketKind {
    pub(crate) stream: bool,
    pub(crate) ipv6: bool,
    pub(crate) udp: bool,
    /// Of `AF_UNIX`.
    pub(crate) unix: bool,
    /// A connection of messages (`SOCK_SEQPACKET`).
    pub(crate) packets: bool,
}

pub(crate) struct SocketShared {
    pub(crate) endpoint: Endpoint,
    /// Handles on the socket, and on lanes.
    pub(crate) handles: Cell<u32>,
    pub(crate) stream: bool,
    pub(crate) ipv6: bool,
    pub(crate) udp: bool,
    pub(crate) unix: bool,
    pub(crate) packets: bool,
    /// The file of its name, if it made that.
    pub(crate) file: OnceCell<SocketFile>,
    /// A lending request on this socket, without its memory.
    pub(crate) lending: squeue::Entry,
    /// Order of the sends of a stream, or of a Unix socket.
    pub(crate) queue: RefCell<StreamQueue>,
    /// Sends by `MSG_ZEROCOPY` that the error queue has not reported yet.
    pub(crate) outstanding: RefCell<Outstanding>,
    /// The part that its loans keep.
    pub(crate) lender: Rc<Lender>,
    /// Ends of splices, which need a non-blocking socket.
    pub(crate) spliced: Cell<u32>,
    /// It blocked before, and blocks again when the last of these is gone.
    pub(crate) blocks_again: Cell<bool>,
    /// Its owner keeps it non-blocking, so that splices need no check.
    pub(crate) never_blocks: Cell<bool>,
    pub(crate) reception: Reception,
    /// Whether the last send that began alone or a chain had to wait for room; then the next should wait
    /// first.
    pub(crate) crowded: Cell<bool>,
    /// Whether pages cannot be pinned for a send. Pages in slots are then named by their slots, whatever
    /// the kernel charges for it.
    pub(crate) keeps_to_slots: Cell<bool>,
    /// What ciphers its bytes.
    #[cfg(feature = "tls")]
    pub(crate) cipher: OnceCell<RefCell<Cipher>>,
    /// A route to it ended before its source, so that its peer gets no whole stream.
    pub(crate) is_short: Cell<bool>,
}

impl Drop for SocketShared {
    fn drop(&mut self) {
        if !self.endpoint.is_here() {
            return;
        }
        self.outstanding.get_mut().detach(&self.endpoint.fd);
        if self.stream && self.lender.lent_by_ring.get() > 0 {
            self.lender.is_cut.set(self.queue.get_mut().broken.is_some());
            self.lender.keep(&self.endpoint);
        }
    }
}

impl SocketShared {
    pub(crate) fn new(io: &Rc<Io>, fd: OwnedFd, chooser: Chooser) -> Result<Self> {
        let failed = |error| Error::io("looking at a socket", error);
        let socket = SockRef::from(&fd);
        let kind = socket.r#type().map_err(failed)?;
        let stream = kind == Type::STREAM;
        let domain = socket.domain().map_err(failed)?;
        let ipv6 = domain == Domain::IPV6;
        let inet = ipv6 || domain == Domain::IPV4;
        let udp = inet && socket.protocol().ok().flatten() == Some(Protocol::UDP);
        let (unix, packets) = (domain == Domain::UNIX, kind == Type::SEQPACKET);
        Ok(Self::of_kind(io, fd, chooser, SocketKind { stream, ipv6, udp, unix, packets }))
    }

    /// As [`new`](Self::new) for a socket whose kind is known.
    pub(crate) fn of_kind(io: &Rc<Io>, fd: OwnedFd, chooser: Chooser, kind: SocketKind) -> Self {
        let SocketKind { stream, ipv6, udp, unix, packets } = kind;
        let endpoint = Endpoint::attach(io, fd);
        let usage = if io.reports_usage { sqe::SEND_ZC_REPORT_USAGE } else { 0 };
        let lending = with_target!(endpoint, |fd| opcode::SendZc::new(fd, std::ptr::null(), 0)
            .flags(message_flags(stream))
            .zc_flags(usage)
            .build());
        Self {
            endpoint,
            handles: Cell::new(0),
            stream,
            ipv6,
            udp,
            unix,
            packets,
            file: OnceCell::new(),
            lending,
            queue: RefCell::default(),
            outstanding: RefCell::default(),
            lender: Rc::new(Lender::new(chooser, stream)),
            spliced: Cell::new(0),
            blocks_again: Cell::new(false),
            never_blocks: Cell::new(false),
            reception: Reception::default(),
            crowded: Cell::new(false),
            keeps_to_slots: Cell::new(false),
            #[cfg(feature = "tls")]
            cipher: OnceCell::new(),
            is_short: Cell::new(false),
        }
    }

    /// Whether it is a connection, whose peer ends it: an empty receive is the end.
    pub(crate) fn has_end(&self) -> bool {
        self.stream || self.packets
    }

    /// Whether its sends may have to wait for each other: those of a stream, and of a Unix socket, which loses none.
    pub(crate) fn keeps_order(&self) -> bool {
        self.stream || self.unix
    }

    /// Flags of sendmsg(2) that all requests on the socket have.
    pub(crate) fn message_flags(&self) -> i32 {
        message_flags(self.stream)
    }

    /// Refuses what a ciphered connection cannot do.
    pub(crate) fn check_plain(&self, refusal: &'static str) -> Result<()> {
        match self.is_ciphered() {
            true => Err(Error::Invalid(refusal)),
            false => Ok(()),
        }
    }

    /// Whether its bytes are ciphered.
    pub(crate) fn is_ciphered(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.cipher.get().is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Whether payload of a send that has not gone whole is in records, which go or are lost with their key.
    pub(crate) fn has_part_in_records(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.cipher.get().is_some_and(|cipher| cipher.borrow().has_part());
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Tells the peer of a ciphered connection that nothing follows; not if a send has not gone whole, since the peer would
    /// take that for all.
    #[cfg(feature = "tls")]
    pub(crate) fn close_cipher(&self) -> Result<()> {
        let Some(cipher) = self.cipher.get() else { return Ok(()) };
        if !self.queue.borrow().is_idle() || !self.is_whole() {
            return Ok(());
        }
        cipher.borrow_mut().close(&self.endpoint.fd).map_err(|stop| stop.error("ending TLS"))
    }

    /// Whether all that went over it so far went whole, so that its peer may be told of a proper end.
    #[cfg(feature = "tls")]
    pub(crate) fn is_whole(&self) -> bool {
        self.queue.borrow().broken.is_none() && !self.is_short.get()
    }

    /// Whether the peer has told that nothing follows, and nothing is left to take.
    pub(crate) fn is_at_its_end(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.cipher.get().is_some_and(|cipher| cipher.borrow().is_closed());
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Whether there is something to take that no wait for the socket tells of.
    pub(crate) fn has_deciphered(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.cipher.get().is_some_and(|cipher| cipher.borrow().has_something());
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Whether this process deciphers what comes.
    pub(crate) fn is_deciphered_here(&self) -> bool {
        #[cfg(feature = "tls")]
        return self
            .cipher
            .get()
            .is_some_and(|cipher| matches!(&*cipher.borrow(), Cipher::User(_)));
        #[cfg(not(feature = "tls"))]
        false
    }

    /// An error of the connection: why its TLS cannot go on, if that is it.
    pub(crate) fn error(&self, action: &'static str, errno: i32) -> Error {
        #[cfg(feature = "tls")]
        if let Some(cipher) = self.cipher.get()
            && let Some(reason) = cipher.borrow().failure()
        {
            return Error::Tls { reason };
        }
        Error::errno(action, errno)
    }

    /// Makes sure that the kernel may cipher what goes to it next, beside the sends of the library; `false` if it has no
    /// room for what the peer must be told before.
    pub(crate) fn prepare_cipher(&self) -> Result<bool> {
        #[cfg(feature = "tls")]
        if let Some(cipher) = self.cipher.get()
            && let Cipher::Kernel(cipher) = &mut *cipher.borrow_mut()
        {
            return match cipher.prepare(&self.endpoint.fd) {
                Ok(()) => Ok(true),
                Err(Stop::Blocked) => Ok(false),
                Err(stop) => Err(stop.error("sending")),
            };
        }
        Ok(true)
    }

    /// The kernel has ciphered so many bytes, beside the sends of the library; of a file, or of pages of any length.
    pub(crate) fn count_ciphered(&self, bytes: usize, of_file: bool) {
        #[cfg(feature = "tls")]
        if let Some(cipher) = self.cipher.get()
            && let Cipher::Kernel(cipher) = &mut *cipher.borrow_mut()
        {
            return if of_file { cipher.count(bytes) } else { cipher.count_pages(bytes) };
        }
        let _ = (bytes, of_file);
    }

    /// Receives by a call what was ciphered; `None` if nothing is. With `keeps` the same bytes come again. The memory has a
    /// byte.
    #[cfg(all(feature = "tls", feature = "tokio"))]
    pub(crate) fn receive_deciphered(
        &self,
        into: &mut [MaybeUninit<u8>],
        keeps: bool,
    ) -> Option<Result<usize>> {
        let mut cipher = self.cipher.get()?.borrow_mut();
        // SAFETY: the slice is the caller's alone, and nothing uninitialised is written to it.
        let received = unsafe {
            cipher.receive(&self.endpoint.fd, (into.as_mut_ptr().cast(), into.len()), keeps)
        };
        drop(cipher);
        Some(usize::try_from(received).map_err(|_| self.error("receiving", -received)))
    }

    /// Sends the beginning of these slices by a call, if the kernel ciphers; `None` otherwise.
    #[cfg(all(feature = "tls", feature = "tokio"))]
    pub(crate) fn send_ciphered(&self, slices: &[IoSlice<'_>]) -> Option<Result<usize>> {
        let mut cipher = self.cipher.get()?.borrow_mut();
        let Cipher::Kernel(cipher) = &mut *cipher else { return None };
        let sent = cipher.prepare(&self.endpoint.fd).and_then(|()| {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut nothing_beside = SendAncillaryBuffer::default();
            let sent = sendmsg(&self.endpoint.fd, slices, &mut nothing_beside, flags);
            sent.inspect(|sent| cipher.count(*sent)).map_err(|errno| io::Error::from(errno).into())
        });
        Some(sent.map_err(|stop| stop.error("sending")))
    }

    /// Ends the connection's writing behind the accepted sends, but not behind a lane.
    #[cfg(feature = "tokio")]
    pub(crate) fn end_writing(&self) {
        let mut queue = self.queue.borrow_mut();
        queue.ends = !queue.lane;
        if queue.take_end() {
            drop(queue);
            self.end_writing_now();
        }
    }

    /// The same when no send is left.
    pub(crate) fn end_writing_now(&self) {
        #[cfg(feature = "tls")]
        let _ = self.close_cipher();
        // It fails if the connection has already ended.
        let _ = SockRef::from(&self.endpoint.fd).shutdown(Shutdown::Write);
    }

    /// Ends the connection at once, in both directions: the kernel tells the peer by a reset, and lets go of everything
    /// that it has not delivered. Requests under way fail.
    pub(crate) fn reset(&self) {
        reset(&self.endpoint.fd);
    }

    /// Leaves the rest of a stream to the kernel when the driver goes: the kernel gives up on a peer that takes nothing
    /// for that long.
    pub(crate) fn leave_to_the_kernel(&self, time: Duration) {
        if self.stream && self.has_undelivered() {
            let millis = time.as_millis().clamp(1, i32::MAX as u128) as u32;
            // Other streams than TCP deliver at once.
            let _ = set_tcp_user_timeout(&self.endpoint.fd, millis);
        }
    }

    /// Whether the kernel may have bytes of a stream that its peer has not taken, or gets more.
    pub(crate) fn has_undelivered(&self) -> bool {
        let queue = self.queue.borrow();
        self.lender.lent_by_ring.get() > 0
            || !self.outstanding.borrow().sends.is_empty()
            || !queue.is_idle()
            || queue.lane
    }

    /// Whether a send ended midway, so that its peer can get no whole stream.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_left() && self.queue.borrow().broken.is_some()
    }

    /// Whether nobody uses the connection any more, but for sends that go on by themselves.
    pub(crate) fn is_left(&self) -> bool {
        self.handles.get() == 0 && !self.reception.is_held()
    }
}

/// As [`SocketShared::reset`], by a descriptor.
pub(crate) fn reset(socket: &OwnedFd) {
    let Err(error) = connect_unspec(socket) else { return };
    // The protocol cannot; then the last close resets the connection. If these fail, it has ended already.
    tracing::debug!(%error, "a connection is reset by its last descriptor");
    let socket = SockRef::from(socket);
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = socket.shutdown(Shutdown::Both);
}

fn message_flags(stream: bool) -> i32 {
    libc::MSG_NOSIGNAL | if stream { libc::MSG_WAITALL } else { 0 }
}

/// Accepted sends of a stream that the kernel has not taken whole.
#[derive(Default)]
pub(crate) struct StreamQueue {
    pub(crate) waiting: VecDeque<Key>,
    /// So many at the front are with the ring, or the first waits for the socket.
    pub(crate) started: usize,
    /// Whether the driver knows that there is something to start.
    pub(crate) marked: bool,
    /// Bytes taken by the kernel, and the length, of a send that ended midway.
    pub(crate) broken: Option<(usize, usize)>,
    /// A lane sends on the stream.
    lane: bool,
    /// The connection's writing ends behind these.
    ends: bool,
    /// Tasks that wait until the kernel has taken all.
    pub(crate) flushing: Waiters,
}

impl StreamQueue {
    pub(crate) fn broken(&self) -> Option<Error> {
        self.broken.map(|(sent, total)| Error::StreamBroken { sent, total })
    }

    /// Why the stream accepts no ordinary send now.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<Error> {
        if self.lane {
            return Some(Error::Invalid(
                "a lane sends on this stream: push into it, or drop it and turn the driver until it is empty",
            ));
        }
        self.broken()
    }

    /// A lane takes the stream over.
    pub(crate) fn open_lane(&mut self) -> Result<()> {
        if let Some(error) = self.refusal() {
            return Err(error);
        }
        if !self.is_idle() {
            return Err(Error::Invalid(
                "sends are under way on this stream: a lane waits for their end",
            ));
        }
        self.lane = true;
        Ok(())
    }

    pub(crate) fn close_lane(&mut self) {
        self.lane = false;
    }

    /// A send ended midway: bytes sent, and its length.
    pub(crate) fn break_off(&mut self, sent: usize, total: usize) {
        self.broken.get_or_insert((sent, total));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the writing must end now; true once.
    pub(crate) fn take_end(&mut self) -> bool {
        self.is_idle() && std::mem::take(&mut self.ends)
    }

    /// Tasks that waited until the kernel has taken all, once it has.
    pub(crate) fn take_flushed(&self) -> Vec<Waker> {
        if self.is_idle() { self.flushing.take() } else { Vec::new() }
    }
}
