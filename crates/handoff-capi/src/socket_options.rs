//! Options of sockets: set before a connection is made, and on sockets that are attached.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::net::SocketAddr;
use std::ptr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use handoff::SocketOptions;

use crate::boundary::{Failure, enter};
use crate::driver::{self, State, sized};
use crate::event::{HANDOFF_EVENT_CONNECTED, handoff_event};
use crate::handles::{self, handoff_driver, handoff_listener, handoff_operation, handoff_socket};
use crate::listen::{Accepts, Listening};
use crate::operation::{self, Cancels};
use crate::socket::{Address, Socket, address};

/// `nodelay` is given.
pub const HANDOFF_OPTION_NODELAY: u32 = 1 << 0;
/// `linger` is given.
pub const HANDOFF_OPTION_LINGER: u32 = 1 << 1;
/// `keepalive` is given.
pub const HANDOFF_OPTION_KEEPALIVE: u32 = 1 << 2;
/// `keepalive_idle` is given.
pub const HANDOFF_OPTION_KEEPALIVE_IDLE: u32 = 1 << 3;
/// `keepalive_interval` is given.
pub const HANDOFF_OPTION_KEEPALIVE_INTERVAL: u32 = 1 << 4;
/// `keepalive_count` is given.
pub const HANDOFF_OPTION_KEEPALIVE_COUNT: u32 = 1 << 5;
/// `user_timeout_ms` is given.
pub const HANDOFF_OPTION_USER_TIMEOUT: u32 = 1 << 6;
/// `send_buffer` is given.
pub const HANDOFF_OPTION_SEND_BUFFER: u32 = 1 << 7;
/// `receive_buffer` is given.
pub const HANDOFF_OPTION_RECEIVE_BUFFER: u32 = 1 << 8;
/// `busy_poll_us` is given.
pub const HANDOFF_OPTION_BUSY_POLL: u32 = 1 << 9;
/// `priority` is given.
pub const HANDOFF_OPTION_PRIORITY: u32 = 1 << 10;
/// `mark` is given.
pub const HANDOFF_OPTION_MARK: u32 = 1 << 11;
/// `device` is given.
pub const HANDOFF_OPTION_DEVICE: u32 = 1 << 12;
/// `bind` and `bind_length` are given.
pub const HANDOFF_OPTION_BIND: u32 = 1 << 13;
/// `reuse_port` is given.
pub const HANDOFF_OPTION_REUSE_PORT: u32 = 1 << 14;
/// `backlog` is given.
pub const HANDOFF_OPTION_BACKLOG: u32 = 1 << 15;

const ALL: u32 = (HANDOFF_OPTION_BACKLOG << 1) - 1;

/// Room for the name of a device, with the zero byte at its end.
pub const HANDOFF_DEVICE_NAME: usize = 16;

/// Options of a socket. Fill with zeroes, set `size`, and then what you want and its bit in `given`; the rest stays as it
/// is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct handoff_socket_options {
    /// `sizeof(struct handoff_socket_options)`.
    pub size: u32,
    /// Which of the others are given: `HANDOFF_OPTION_...`.
    pub given: u32,
    /// 1: TCP sends small segments at once.
    pub nodelay: u32,
    /// How long close(2) waits for the peer to take what was sent, in seconds; -1: it does not wait. 0 resets the
    /// connection.
    pub linger: i32,
    /// 1: TCP asks an idle peer if it is still there. Any of the next three switches it on.
    pub keepalive: u32,
    /// How long a connection is idle before the first question, in seconds.
    pub keepalive_idle: u32,
    /// The time between questions, in seconds.
    pub keepalive_interval: u32,
    /// After so many questions without an answer the connection is broken.
    pub keepalive_count: u32,
    /// After so many milliseconds without an acknowledgement the connection is broken; 0: as the system has it.
    pub user_timeout_ms: u32,
    /// Bytes of the send buffer. The kernel doubles them, and tells the double.
    pub send_buffer: u32,
    /// Bytes of the receive buffer, in the same way.
    pub receive_buffer: u32,
    /// How long a receive that finds nothing polls the device, in microseconds.
    pub busy_poll_us: u32,
    /// Priority of the packets.
    pub priority: u32,
    /// Mark of the packets, for routing and filters.
    pub mark: u32,
    /// 1: several listeners share the address. For `handoff_listen_at`.
    pub reuse_port: u32,
    /// The most connections that wait to be accepted. For `handoff_listen_at`.
    pub backlog: u32,
    /// The only device that packets come and go by; empty: any.
    pub device: [c_char; HANDOFF_DEVICE_NAME],
    /// The address to connect from: a `struct sockaddr_in` or `sockaddr_in6`. With port 0 the kernel chooses the port when
    /// it knows the peer. For `handoff_connect_with`.
    pub bind: *const c_void,
    /// The size of that address.
    pub bind_length: usize,
}

impl Default for handoff_socket_options {
    fn default() -> Self {
        Self {
            size: 0,
            given: 0,
            nodelay: 0,
            linger: 0,
            keepalive: 0,
            keepalive_idle: 0,
            keepalive_interval: 0,
            keepalive_count: 0,
            user_timeout_ms: 0,
            send_buffer: 0,
            receive_buffer: 0,
            busy_poll_us: 0,
            priority: 0,
            mark: 0,
            reuse_port: 0,
            backlog: 0,
            device: [0; HANDOFF_DEVICE_NAME],
            bind: ptr::null(),
            bind_length: 0,
        }
    }
}

/// The library's options; those that C has not given stay as they are.
///
/// # Safety
///
/// `options` is NULL or points to as many bytes as its `size` says; `bind`, where it is given, is `bind_length` bytes long.
unsafe fn given(options: *const handoff_socket_options) -> Result<SocketOptions, Failure> {
    // SAFETY: the caller vouches for it.
    let given = unsafe { sized(options, |options: &handoff_socket_options| options.size) }?;
    if given.given & !ALL != 0 {
        return Err(Failure::invalid("given has a bit that is none of HANDOFF_OPTION_..."));
    }
    let has = |bit: u32| given.given & bit != 0;
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let switch = |bit, value, name: &str| match (has(bit), value) {
        (false, _) => Ok(None),
        (true, 0 | 1) => Ok(Some(value == 1)),
        _ => Err(Failure::invalid(&format!("{name} is neither 0 nor 1"))),
    };
    let mut options = SocketOptions::default();
    options.nodelay = switch(HANDOFF_OPTION_NODELAY, given.nodelay, "nodelay")?;
    options.linger = match (has(HANDOFF_OPTION_LINGER), given.linger) {
        (false, _) => None,
        (true, -1) => Some(None),
        (true, time) => {
            let time = u32::try_from(time);
            let time = time.map_err(|_| Failure::invalid("linger is negative, and not -1"))?;
            Some(Some(seconds(time)))
        }
    };
    options.keepalive = switch(HANDOFF_OPTION_KEEPALIVE, given.keepalive, "keepalive")?;
    options.keepalive_idle =
        has(HANDOFF_OPTION_KEEPALIVE_IDLE).then(|| seconds(given.keepalive_idle));
    options.keepalive_interval =
        has(HANDOFF_OPTION_KEEPALIVE_INTERVAL).then(|| seconds(given.keepalive_interval));
    options.keepalive_count = has(HANDOFF_OPTION_KEEPALIVE_COUNT).then_some(given.keepalive_count);
    options.user_timeout = has(HANDOFF_OPTION_USER_TIMEOUT)
        .then(|| Duration::from_millis(given.user_timeout_ms.into()));
    options.send_buffer = has(HANDOFF_OPTION_SEND_BUFFER).then_some(given.send_buffer as usize);
    options.receive_buffer =
        has(HANDOFF_OPTION_RECEIVE_BUFFER).then_some(given.receive_buffer as usize);
    options.busy_poll =
        has(HANDOFF_OPTION_BUSY_POLL).then(|| Duration::from_micros(given.busy_poll_us.into()));
    options.priority = has(HANDOFF_OPTION_PRIORITY).then_some(given.priority);
    options.mark = has(HANDOFF_OPTION_MARK).then_some(given.mark);
    options.reuse_port = switch(HANDOFF_OPTION_REUSE_PORT, given.reuse_port, "reuse_port")?;
    options.backlog = has(HANDOFF_OPTION_BACKLOG).then_some(given.backlog);
    if has(HANDOFF_OPTION_DEVICE) {
        let name = given.device.map(|letter| letter as u8);
        let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
        let name = name.ok_or_else(|| {
            Failure::invalid(
                "the device's name is no text of at most 15 letters, with a zero behind it",
            )
        })?;
        options.device = Some(name.to_owned());
    }
    if has(HANDOFF_OPTION_BIND) {
        // SAFETY: the caller vouches for it.
        let from = unsafe { internet(given.bind, given.bind_length, "bind") }?;
        options.bind = Some(from);
    }
    Ok(options)
}

/// An address of IP.
///
/// # Safety
///
/// The address is NULL or so many bytes long.
unsafe fn internet(place: *const c_void, length: usize, name: &str) -> Result<SocketAddr, Failure> {
    // SAFETY: the caller vouches for it.
    match unsafe { address(place, length) }? {
        Some(Address::Internet(address)) => Ok(address),
        Some(Address::Unix(_)) => {
            Err(Failure::invalid(&format!("{name} is no address of IP: Unix sockets have none")))
        }
        None => Err(Failure::invalid(&format!("{name} is NULL"))),
    }
}

/// Sets options of a socket that is attached, before `handoff_connect` or at any time. Where the kernel refuses one, others
/// may be set. `bind`, `reuse_port` and `backlog` are refused: they are for the calls below.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `options` points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_socket_set_options(
    socket: handoff_socket,
    options: *const handoff_socket_options,
) -> c_int {
    enter(|| {
        let it = handles::get::<Rc<Socket>>(socket)?;
        // SAFETY: the caller vouches for it.
        it.socket.set_options(&unsafe { given(options) }?)?;
        Ok(0)
    })
}

/// Tells the options that a socket has: `given` has the bits of those that its kind and the struct have. Set `size` before. An address to
/// connect from, `reuse_port` and `backlog` are not told.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `options` can be written, as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_socket_get_options(
    socket: handoff_socket,
    options: *mut handoff_socket_options,
) -> c_int {
    enter(|| {
        let it = handles::get::<Rc<Socket>>(socket)?;
        // What is there does not count; this looks at the size.
        if options.is_null() {
            return Err(Failure::invalid("the place for the options is NULL"));
        }
        // SAFETY: every version begins with the size, which the caller vouches for.
        let size = unsafe { options.cast::<u32>().read_unaligned() };
        let common = (size as usize).min(size_of::<handoff_socket_options>());
        if common < size_of::<[u32; 2]>() {
            return Err(Failure::invalid("the options' size is not set: it is their sizeof"));
        }
        let mut told = handoff_socket_options { size, ..of(&it.socket.options()?) };
        for (bit, end) in TOLD {
            if end > common {
                told.given &= !bit;
            }
        }
        // SAFETY: both have that many bytes. What the caller's have beyond stays.
        unsafe {
            ptr::copy_nonoverlapping((&raw const told).cast::<u8>(), options.cast(), common);
        }
        Ok(0)
    })
}

/// The options that are told, and where each ends in the struct.
const TOLD: [(u32, usize); 13] = {
    macro_rules! end {
        ($field:ident, $type:ty) => {
            offset_of!(handoff_socket_options, $field) + size_of::<$type>()
        };
    }
    [
        (HANDOFF_OPTION_NODELAY, end!(nodelay, u32)),
        (HANDOFF_OPTION_LINGER, end!(linger, i32)),
        (HANDOFF_OPTION_KEEPALIVE, end!(keepalive, u32)),
        (HANDOFF_OPTION_KEEPALIVE_IDLE, end!(keepalive_idle, u32)),
        (HANDOFF_OPTION_KEEPALIVE_INTERVAL, end!(keepalive_interval, u32)),
        (HANDOFF_OPTION_KEEPALIVE_COUNT, end!(keepalive_count, u32)),
        (HANDOFF_OPTION_USER_TIMEOUT, end!(user_timeout_ms, u32)),
        (HANDOFF_OPTION_SEND_BUFFER, end!(send_buffer, u32)),
        (HANDOFF_OPTION_RECEIVE_BUFFER, end!(receive_buffer, u32)),
        (HANDOFF_OPTION_BUSY_POLL, end!(busy_poll_us, u32)),
        (HANDOFF_OPTION_PRIORITY, end!(priority, u32)),
        (HANDOFF_OPTION_MARK, end!(mark, u32)),
        (HANDOFF_OPTION_DEVICE, end!(device, [c_char; HANDOFF_DEVICE_NAME])),
    ]
};

/// What the library tells, for C.
fn of(options: &SocketOptions) -> handoff_socket_options {
    let mut told = handoff_socket_options::default();
    let mut bits = 0;
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let bytes = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut put = |place: &mut u32, bit, value: Option<u32>| {
        if let Some(value) = value {
            *place = value;
            bits |= bit;
        }
    };
    put(&mut told.nodelay, HANDOFF_OPTION_NODELAY, options.nodelay.map(u32::from));
    put(&mut told.keepalive, HANDOFF_OPTION_KEEPALIVE, options.keepalive.map(u32::from));
    let idle = options.keepalive_idle.map(seconds);
    put(&mut told.keepalive_idle, HANDOFF_OPTION_KEEPALIVE_IDLE, idle);
    let interval = options.keepalive_interval.map(seconds);
    put(&mut told.keepalive_interval, HANDOFF_OPTION_KEEPALIVE_INTERVAL, interval);
    put(&mut told.keepalive_count, HANDOFF_OPTION_KEEPALIVE_COUNT, options.keepalive_count);
    let timeout = options.user_timeout.map(|time| bytes(time.as_millis() as usize));
    put(&mut told.user_timeout_ms, HANDOFF_OPTION_USER_TIMEOUT, timeout);
    put(&mut told.send_buffer, HANDOFF_OPTION_SEND_BUFFER, options.send_buffer.map(bytes));
    put(&mut told.receive_buffer, HANDOFF_OPTION_RECEIVE_BUFFER, options.receive_buffer.map(bytes));
    let busy = options.busy_poll.map(|time| bytes(time.as_micros() as usize));
    put(&mut told.busy_poll_us, HANDOFF_OPTION_BUSY_POLL, busy);
    put(&mut told.priority, HANDOFF_OPTION_PRIORITY, options.priority);
    put(&mut told.mark, HANDOFF_OPTION_MARK, options.mark);
    if let Some(linger) = options.linger {
        told.linger = linger.map_or(-1, |time| seconds(time).min(i32::MAX as u32) as i32);
        bits |= HANDOFF_OPTION_LINGER;
    }
    if let Some(device) = &options.device {
        // The last byte stays 0.
        let room = &mut told.device[..HANDOFF_DEVICE_NAME - 1];
        room.iter_mut().zip(device.bytes()).for_each(|(place, letter)| *place = letter as c_char);
        bits |= HANDOFF_OPTION_DEVICE;
    }
    told.given = bits;
    told
}

/// Begins to connect to an address by TCP, with options that are set before the first packet. `options` may be NULL.
/// `HANDOFF_EVENT_CONNECTED` tells the end, with the new socket's handle. `address` is a `struct sockaddr_in` or
/// `sockaddr_in6`. `operation` is as for `handoff_connect`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `address` is `address_length` bytes long; `options` is NULL or points to as many bytes as its `size` says; `operation` is
/// NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_connect_with(
    driver: handoff_driver,
    address: *const c_void,
    address_length: usize,
    options: *const handoff_socket_options,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        // SAFETY: the caller vouches for it.
        let (to, options) =
            unsafe { (internet(address, address_length, "the address")?, given(options)?) };
        let begin = || {
            let connecting = state.driver.connect_with(to, &options)?;
            let connecting = Rc::new(RefCell::new(connecting));
            let cancels = Rc::downgrade(&connecting);
            let driver = Rc::downgrade(&state);
            let event = handoff_event::new(HANDOFF_EVENT_CONNECTED, user_data);
            state.begin(async move {
                match operation::finished(&connecting).await {
                    Ok(socket) => {
                        if let Some(state) = driver.upgrade() {
                            state.tell_with_handle(event, |state| {
                                handles::insert(Rc::new(Socket { socket, state: Rc::clone(state) }))
                            });
                        }
                    }
                    Err(error) => driver::tell(&driver, event, Some(error.into())),
                }
            });
            Ok(cancels as Weak<dyn Cancels>)
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begin) }
    })
}

/// Listens for TCP connections at an address, with options that are set before, and begins to accept as `handoff_listen`
/// does. The connections have the options, too, except the priority. `options` may be NULL. `address` is a `struct
/// sockaddr_in` or `sockaddr_in6`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `address` is `address_length` bytes long; `options` is NULL or points to as many bytes as its `size` says; `listener` can
/// be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_listen_at(
    driver: handoff_driver,
    address: *const c_void,
    address_length: usize,
    options: *const handoff_socket_options,
    user_data: u64,
    listener: *mut handoff_listener,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let (at, options) =
            unsafe { (internet(address, address_length, "the address")?, given(options)?) };
        let open = || {
            let state = handles::get::<Rc<State>>(driver)?;
            let accepts = Accepts::Tcp(state.driver.listen_at(at, &options)?);
            Ok(Listening::new(&state, accepts, user_data))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(listener, open) }
    })
}
