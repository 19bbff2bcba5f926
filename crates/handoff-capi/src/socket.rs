//! Sockets, and sends one by one.

use std::cell::RefCell;
use std::ffi::{OsStr, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;
use std::rc::{Rc, Weak};

use handoff::{Buffer, Engine, Frozen, OnLoan, Receipt, Returned, Sent, Span, UnixAddress};

use crate::boundary::{Failure, bytes, done, enter, owned};
use crate::driver::{self, State, sized};
use crate::event::{
    HANDOFF_ENGINE_AUTO, HANDOFF_ENGINE_COPY, HANDOFF_ENGINE_MSG_ZEROCOPY, HANDOFF_ENGINE_URING_ZC,
    HANDOFF_EVENT_CONNECTED, HANDOFF_EVENT_SENT, handoff_event,
};
use crate::group::{Group, Over};
use crate::handles::{
    self, Kind, handoff_driver, handoff_group, handoff_handle, handoff_operation, handoff_socket,
};
use crate::loan::{self, Lent, Sendable};
use crate::operation::{self, Cancels};

/// Tell when the kernel took the bytes, too: with `HANDOFF_EVENT_SENT`.
pub const HANDOFF_SEND_TELL_SENT: u32 = 1;
/// Another send follows at once on the stream: the kernel may keep the end of this one for a packet with that.
pub const HANDOFF_SEND_MORE: u32 = 2;
/// The most bytes of a header.
pub const HANDOFF_MAX_HEADER: usize = 64;

const _: () = assert!(HANDOFF_MAX_HEADER == handoff::MAX_HEADER);

/// How to send. Fill with zeroes, set `size`, and then what differs from the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct handoff_send_options {
    /// `sizeof(struct handoff_send_options)`.
    pub size: u32,
    /// Of `HANDOFF_SEND_...`.
    pub flags: u32,
    /// Bytes that go before the payload, and are copied when the call is made; at most `HANDOFF_MAX_HEADER`.
    pub header: *const c_void,
    /// How many they are.
    pub header_length: usize,
    /// Where a datagram goes: a `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_un`. NULL on a socket that is connected.
    pub address: *const c_void,
    /// The size of the address.
    pub address_length: usize,
    /// A group of the socket's driver that the send joins: the group tells of it then, and the send itself tells nothing.
    pub group: handoff_group,
    /// Send the bytes as UDP datagrams of so many each; the last may be shorter. 0: as one.
    pub segment: u32,
    /// Always 0.
    pub reserved: u32,
    /// Descriptors that go with the message, on a Unix socket. They are duplicated when the call is made, and stay yours.
    pub descriptors: *const c_int,
    /// How many they are, at most 253.
    pub descriptor_count: usize,
}

impl Default for handoff_send_options {
    fn default() -> Self {
        Self {
            size: 0,
            flags: 0,
            header: ptr::null(),
            header_length: 0,
            address: ptr::null(),
            address_length: 0,
            group: 0,
            segment: 0,
            reserved: 0,
            descriptors: ptr::null(),
            descriptor_count: 0,
        }
    }
}

/// A socket, and its driver.
pub(crate) struct Socket {
    pub(crate) socket: handoff::Socket,
    pub(crate) state: Rc<State>,
}

impl Kind for Rc<Socket> {
    const NAME: &'static str = "a socket";
}

/// Attaches a socket to a driver, which closes `fd` from then on, also if this fails.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `fd` belongs to the caller; `socket` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_socket_new(
    driver: handoff_driver,
    fd: c_int,
    socket: *mut handoff_socket,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let fd = unsafe { owned(fd) }?;
        let attach = || {
            let state = handles::get::<Rc<State>>(driver)?;
            Ok(Rc::new(Socket { socket: state.driver.socket(fd)?, state }))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(socket, attach) }
    })
}

/// Says by which engine a socket is to send: one of `HANDOFF_ENGINE_...`.
///
/// Returns 0, or a negative error number: `-EOPNOTSUPP` with the reason where that is not possible.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_socket_set_engine(socket: handoff_socket, engine: u32) -> c_int {
    enter(|| {
        let engine = match engine {
            HANDOFF_ENGINE_AUTO => Engine::Auto,
            HANDOFF_ENGINE_URING_ZC => Engine::UringZc,
            HANDOFF_ENGINE_MSG_ZEROCOPY => Engine::MsgZerocopy,
            HANDOFF_ENGINE_COPY => Engine::Copy,
            _ => return Err(Failure::invalid("engine is none of HANDOFF_ENGINE_...")),
        };
        handles::get::<Rc<Socket>>(socket)?.socket.set_engine(engine)?;
        Ok(0)
    })
}

/// Begins to send a buffer, a frozen one, or a span that was received.
///
/// The payload is on loan until `HANDOFF_EVENT_RETURNED` tells that it is back; a span is gone then, and its
/// handle is at once. A frozen buffer can be lent again meanwhile, on any socket of this thread.
///
/// `options` may be NULL. `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to be closed in
/// any case.
///
/// Returns 0, or a negative error number; nothing was lent then.
///
/// # Safety
///
/// `options` is NULL or points to as many bytes as its `size` says, and so do header and address; `operation`
/// is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_send(
    socket: handoff_socket,
    payload: handoff_handle,
    options: *const handoff_send_options,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let options = unsafe { sized(options, |options| options.size) }?;
        // SAFETY: the caller vouches for header and address.
        let how = unsafe { How::new(&options, user_data) }?;
        let socket = handles::get::<Rc<Socket>>(socket)?;
        if let Some(group) = &how.group {
            group.check_is_of(&socket.state)?;
        }
        let begin = || match loan::sendable(payload)? {
            Sendable::Buffer => how.lend::<Buffer>(&socket, payload),
            Sendable::Frozen => how.lend::<Frozen>(&socket, payload),
            Sendable::Span => how.lend::<Span>(&socket, payload),
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begin) }
    })
}

/// What a send is told beside its payload.
struct How<'a> {
    header: &'a [u8],
    descriptors: Vec<BorrowedFd<'a>>,
    address: Option<Address>,
    segment: Option<usize>,
    more: bool,
    tell_sent: bool,
    group: Option<Rc<Group>>,
    user_data: u64,
}

impl How<'_> {
    /// # Safety
    ///
    /// Header and address are as long as is said, and stay until the value goes.
    unsafe fn new(options: &handoff_send_options, user_data: u64) -> Result<Self, Failure> {
        if options.flags & !(HANDOFF_SEND_TELL_SENT | HANDOFF_SEND_MORE) != 0 {
            return Err(Failure::invalid("flags has something that is none of HANDOFF_SEND_..."));
        }
        if options.reserved != 0 {
            return Err(Failure::invalid("reserved is not 0"));
        }
        let handoff_send_options { header, header_length, .. } = *options;
        // SAFETY: the caller vouches for it.
        let header = unsafe { bytes(header, header_length, HANDOFF_MAX_HEADER, "header") }?;
        // SAFETY: the caller vouches for it.
        let address = unsafe { address(options.address, options.address_length) }?;
        // SAFETY: the caller vouches for it.
        let descriptors = unsafe { descriptors(options.descriptors, options.descriptor_count) }?;
        let tell_sent = options.flags & HANDOFF_SEND_TELL_SENT != 0;
        let group = match options.group {
            0 => None,
            _ if tell_sent => {
                return Err(Failure::invalid("a send in a group tells nothing by itself"));
            }
            group => Some(handles::get(group)?),
        };
        Ok(Self {
            header,
            descriptors,
            address,
            segment: (options.segment != 0).then_some(options.segment as usize),
            more: options.flags & HANDOFF_SEND_MORE != 0,
            tell_sent,
            group,
            user_data,
        })
    }

    /// Lends a payload to a send, and follows that to its end.
    fn lend<B: Lent>(
        &self,
        socket: &Socket,
        payload: handoff_handle,
    ) -> Result<Weak<dyn Cancels>, Failure> {
        let mut cancels = Weak::<RefCell<Sent>>::new();
        loan::lend(payload, |lent: B, handle| {
            let mut message = socket.socket.message(lent);
            if !self.header.is_empty() {
                message = message.header(self.header);
            }
            match &self.address {
                Some(Address::Internet(address)) => message = message.to(*address),
                Some(Address::Unix(name)) => message = message.to_unix(name),
                None => {}
            }
            if !self.descriptors.is_empty() {
                message = message.descriptors(&self.descriptors);
            }
            if let Some(bytes) = self.segment {
                message = message.segment(bytes);
            }
            if self.more {
                message = message.more();
            }
            let sending =
                message.send().map_err(|refused| (refused.buffer, refused.error.into()))?;
            let (sent, loan) = sending.split();
            let sent = Rc::new(RefCell::new(sent));
            cancels = Rc::downgrade(&sent);
            if let Some(group) = &self.group {
                group.join(Box::pin(over(sent, loan, handle, |_, _| {})));
                return Ok(());
            }
            let mut event = handoff_event::new(HANDOFF_EVENT_SENT, self.user_data);
            event.handle = handle;
            let state = Rc::downgrade(&socket.state);
            socket.state.begin(follow(state, sent, loan, self.tell_sent, event));
            Ok(())
        })?;
        Ok(cancels)
    }
}

/// # Safety
///
/// So many numbers are there.
unsafe fn descriptors<'a>(
    place: *const c_int,
    count: usize,
) -> Result<Vec<BorrowedFd<'a>>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if place.is_null() || count > 253 {
        return Err(Failure::invalid("descriptors are NULL, or more than 253"));
    }
    // SAFETY: the caller vouches for it.
    let numbers = unsafe { std::slice::from_raw_parts(place, count) };
    let borrowed = numbers.iter().map(|number| {
        // SAFETY: a call on any number.
        if unsafe { libc::fcntl(*number, libc::F_GETFD) } < 0 {
            return Err(Failure::new(libc::EBADF, format!("{number} is no open descriptor")));
        }
        // SAFETY: it is open, and the caller keeps it so during the call.
        Ok(unsafe { BorrowedFd::borrow_raw(*number) })
    });
    borrowed.collect()
}

/// An address of one of the families.
#[derive(Debug)]
pub(crate) enum Address {
    Internet(SocketAddr),
    Unix(UnixAddress),
}

/// The name in a `struct sockaddr_un` of so many bytes.
fn unix_name(given: &[u8]) -> Result<Address, Failure> {
    let name = &given[size_of::<libc::sa_family_t>()..];
    let name = match name {
        [] => Ok(UnixAddress::unnamed()),
        [0, name @ ..] => UnixAddress::abstract_name(name),
        path => {
            let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
            UnixAddress::path(OsStr::from_bytes(path))
        }
    };
    Ok(Address::Unix(name?))
}

/// # Safety
///
/// The address is NULL or as long as is said.
pub(crate) unsafe fn address(
    address: *const c_void,
    length: usize,
) -> Result<Option<Address>, Failure> {
    let whole = size_of::<socket2::SockAddrStorage>();
    // SAFETY: the caller vouches for it.
    let given = unsafe { bytes(address, length, whole, "address") }?;
    if address.is_null() {
        return Ok(None);
    }
    let family = given.first_chunk().map(|family| libc::sa_family_t::from_ne_bytes(*family));
    if family == Some(libc::AF_UNIX as libc::sa_family_t) {
        return unix_name(given).map(Some);
    }
    if length < size_of::<libc::sockaddr_in>() {
        return Err(Failure::invalid(
            "the address is no sockaddr_in, sockaddr_in6 or sockaddr_un by its family and length",
        ));
    }
    let mut storage = socket2::SockAddrStorage::zeroed();
    // SAFETY: the storage is no shorter than what was given.
    unsafe { ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut storage).cast(), length) };
    // SAFETY: so many bytes of it are initialised, the rest is zero.
    let address = unsafe { socket2::SockAddr::new(storage, length as libc::socklen_t) };
    let address = address
        .as_socket()
        .ok_or_else(|| Failure::invalid("the address is neither IPv4, IPv6 nor of Unix"))?;
    if address.is_ipv6() && length < size_of::<libc::sockaddr_in6>() {
        return Err(Failure::invalid("the address is IPv6, and shorter than a sockaddr_in6"));
    }
    Ok(Some(Address::Internet(address)))
}

/// Follows a send to its end; `event` says what it is about.
async fn follow<B: Lent>(
    state: Weak<State>,
    sent: Rc<RefCell<Sent>>,
    loan: OnLoan<B>,
    tell_sent: bool,
    event: handoff_event,
) {
    let on_sent = |bytes, failure: &Option<Failure>| {
        if tell_sent {
            driver::tell(&state, handoff_event { bytes, ..event }, failure.clone());
        }
    };
    let over = over(sent, loan, event.handle, on_sent).await;
    over.tell(&state, event);
}

/// What became of a send, when its payload is back and given back to its handle.
async fn over<B: Lent>(
    sent: Rc<RefCell<Sent>>,
    loan: OnLoan<B>,
    handle: handoff_handle,
    on_sent: impl FnOnce(u64, &Option<Failure>),
) -> Over {
    let result = operation::finished(&sent).await;
    drop(sent);
    let (bytes, failure) = match result {
        Ok(bytes) => (bytes as u64, None),
        Err(error) => (done(&error), Some(Failure::from(error))),
    };
    on_sent(bytes, &failure);
    let Returned { buffer, receipt: Receipt { tally, engine, .. } } = match loan.await {
        Ok(returned) => returned,
        // The kernel keeps the payload, so its handle stays on loan.
        Err(error) => {
            let failure = failure.or(Some(error.into()));
            return Over { bytes, tally: Default::default(), engine: None, failure };
        }
    };
    loan::give_back(handle, buffer);
    let bytes = if failure.is_some() { tally.total() } else { bytes };
    Over { bytes, tally, engine, failure }
}

/// Begins to connect a socket that is attached: `HANDOFF_EVENT_CONNECTED` tells the end. `address` is a
/// `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_un`. `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to
/// be closed in any case.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `address` is `address_length` bytes long; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_connect(
    socket: handoff_socket,
    address: *const c_void,
    address_length: usize,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let to = unsafe { self::address(address, address_length) }?;
        let to = to.ok_or_else(|| Failure::invalid("the address is NULL"))?;
        let it = handles::get::<Rc<Socket>>(socket)?;
        let begin = || {
            let connecting = match &to {
                Address::Internet(address) => it.socket.connect(*address),
                Address::Unix(name) => it.socket.connect_unix(name),
            };
            let connecting = Rc::new(RefCell::new(connecting?));
            let cancels = Rc::downgrade(&connecting);
            let state = Rc::downgrade(&it.state);
            let mut event = handoff_event::new(HANDOFF_EVENT_CONNECTED, user_data);
            event.handle = socket;
            it.state.begin(async move {
                let connected = operation::finished(&connecting).await;
                driver::tell(&state, event, connected.err().map(Failure::from));
            });
            Ok(cancels as Weak<dyn Cancels>)
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begin) }
    })
}

/// Ends a connection at once: its peer gets a reset, and bytes that it has not taken are lost. Sends and receives under way
/// fail, and lent buffers come back with the next turns, however long the peer would have kept them. Does nothing to
/// datagram sockets. The socket stays to be closed.
///
/// Returns 0, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_abort(socket: handoff_socket) -> c_int {
    enter(|| {
        handles::get::<Rc<Socket>>(socket)?.socket.abort();
        Ok(0)
    })
}

/// The descriptor of a socket, for getpeername(2), shutdown(2), options and the like. It stays the socket's: don't close
/// it, and neither send nor receive by it.
///
/// Returns the descriptor, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_socket_fd(socket: handoff_socket) -> c_int {
    enter(|| Ok(handles::get::<Rc<Socket>>(socket)?.socket.as_fd().as_raw_fd()))
}
