//! get-buf: lends kernel buffers into a ring's table of registered buffers.
//!
//! Kernel interface: `kmod/getbuf/getbuf.h` of this project, a module for Linux 7.2 and later.
//! Commands are `IORING_OP_URING_CMD` with their slot in `buf_index`; the rest are ioctls.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use io_uring::types::{Fd, Fixed};
use io_uring::{opcode, squeue};

/// The device.
pub const PATH: &str = "/dev/getbuf";

/// `GETBUF_SOURCE`: [`get`](Command::get) may lend from the file.
pub const SOURCE: u32 = 1;

/// `GETBUF_NULL`: a source that needs no binding, a page of zeros over and over.
pub const NULL: u16 = 0xffff;

/// `GETBUF_REPLACE`, and the position of the number in `GETBUF_FURTHER`.
const REPLACE: u16 = 1 << 2;
const FURTHER_SHIFT: u32 = 8;

const fn request(direction: u64, number: u64, bytes: usize) -> u64 {
    (direction << 30) | ((bytes as u64) << 16) | (0xe7 << 8) | number
}

const BIND: u64 = request(3, 0, size_of::<Bind>());
const UNBIND: u64 = request(1, 1, size_of::<Unbind>());
const QUERY: u64 = request(3, 2, size_of::<Query>());
const GET: u32 = request(2, 0x10, COMMAND) as u32;
const FRESH: u32 = request(2, 0x11, COMMAND) as u32;
const PUT: u32 = request(2, 0x12, COMMAND) as u32;
const CANCEL: u32 = request(2, 0x13, COMMAND) as u32;
/// The size of a command's structure in bytes.
const COMMAND: usize = 16;

/// `struct getbuf_bind`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Bind {
    fd: i32,
    purpose: u32,
    flags: u32,
    id: u32,
    reserved: [u64; 2],
}

/// `struct getbuf_unbind`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Unbind {
    id: u32,
    reserved: u32,
}

/// `struct getbuf_query`: limits and counts of an open device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Zero.
    pub flags: u32,
    /// The most files bound at once.
    pub sources_max: u32,
    /// The most bytes of one lend.
    pub lend_bytes_max: u32,
    /// The most lends of a user out at once.
    pub lends_max: u32,
    /// The most bytes of a user out at once, in whole folios.
    pub bytes_max: u64,
    /// The age in ms of a lend of received data beyond which no new one is made; 0: no limit.
    pub stream_age_max: u32,
    /// Files bound now.
    pub bound: u32,
    /// Lends that are out.
    pub lends: u64,
    /// Bytes of these, in whole folios.
    pub bytes: u64,
    /// Age of the oldest, in ms.
    pub oldest: u64,
    /// Age of the oldest of received data, in ms.
    pub oldest_stream: u64,
    /// `GET`s that wait for data.
    pub waiting: u64,
    /// Lends that are out, of all users of the device: for root. For others the same as
    /// [`user_lends`](Self::user_lends).
    pub module_lends: u64,
    /// Lends so far.
    pub lent: u64,
    /// Lends that came back.
    pub returned: u64,
    /// Bytes of all lends so far.
    pub lent_bytes: u64,
    /// Lends of the null source.
    pub from_null: u64,
    /// Lends of what was in the page cache.
    pub from_cache: u64,
    /// Lends of what the file gave: its own pages, or new ones that it read into.
    pub from_splice: u64,
    /// Lends of received data.
    pub from_stream: u64,
    /// Lends of new pages.
    pub fresh: u64,
    /// Bytes that had to be copied to be lent.
    pub copied_bytes: u64,
    /// Bytes sent by the device itself.
    pub sent_bytes: u64,
    /// Commands refused with `ENOBUFS`, a limit of the device.
    pub over_limit: u64,
    /// Commands refused with `ENOMEM`, the limit on locked memory.
    pub over_memlock: u64,
    /// Commands refused with `ETIME`.
    pub over_age: u64,
    /// The age in ms of a file's lend beyond which no new one is made; 0: no limit.
    pub file_age_max: u64,
    /// Age of the oldest lend of a file, in ms.
    pub oldest_file: u64,
    /// Lends that are out through all open devices of the user. Only the user and root are told; for
    /// others this and the next ones count this open device.
    pub user_lends: u64,
    /// Their bytes, in whole folios.
    pub user_bytes: u64,
    /// Files that are bound through all open devices of the user.
    pub user_bound: u64,
    /// Age of the user's oldest lend of received data, in ms.
    pub user_oldest_stream: u64,
    /// Age of the user's oldest lend of a file, in ms.
    pub user_oldest_file: u64,
    reserved: [u64; 1],
}

const _: () = assert!(size_of::<Bind>() == 32);
const _: () = assert!(size_of::<Unbind>() == 8);
const _: () = assert!(size_of::<Query>() == 248);

fn ioctl<T>(device: impl AsFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request of the device reads and writes the structure that its number has the size
    // of, which the callers pass.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Binds a file to lend from; returns the id for commands.
///
/// # Errors
///
/// As the module documents; `EOPNOTSUPP` for a file that cannot be lent from.
pub fn bind(device: impl AsFd, file: impl AsFd) -> io::Result<u16> {
    let mut bind = Bind { fd: file.as_fd().as_raw_fd(), purpose: SOURCE, ..Bind::default() };
    ioctl(device, BIND, &mut bind)?;
    Ok(bind.id as u16)
}

/// Removes a binding; its waiting `GET`s end with `ECANCELED`.
///
/// # Errors
///
/// `EBADF` if it does not exist.
pub fn unbind(device: impl AsFd, id: u16) -> io::Result<()> {
    ioctl(device, UNBIND, &mut Unbind { id: id.into(), reserved: 0 })
}

/// Limits and counts of the open device.
///
/// # Errors
///
/// If the descriptor is not such a device.
pub fn query(device: impl AsFd) -> io::Result<Query> {
    let mut query = Query::default();
    ioctl(device, QUERY, &mut query)?;
    Ok(query)
}

/// A command that does not name the device yet.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    operation: u32,
    slot: Option<u16>,
    bytes: [u8; COMMAND],
}

impl Command {
    fn new(operation: u32, slot: Option<u16>, words: [u64; 2]) -> Self {
        let mut bytes = [0; COMMAND];
        bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
        Self { operation, slot, bytes }
    }

    /// `GETBUF_CMD_GET`: lends at most so many bytes at an offset of a bound file into the slot.
    pub fn get(slot: u16, source: u16, offset: u64, length: u32) -> Self {
        Self::new(GET, Some(slot), [offset, u64::from(length) | (u64::from(source) << 32)])
    }

    /// With `GETBUF_REPLACE` and `GETBUF_FURTHER`: a get clears this many slots, from its own on, and
    /// lends into each.
    ///
    /// # Panics
    ///
    /// If `slots` is not 1 to 256.
    pub fn anew(mut self, slots: u16) -> Self {
        assert!((1..=256).contains(&slots), "{slots} slots at once");
        let flags = REPLACE | ((slots - 1) << FURTHER_SHIFT);
        self.bytes[14..].copy_from_slice(&flags.to_ne_bytes());
        self
    }

    /// `GETBUF_CMD_FRESH`: lends new pages into two slots, one to fill and one to send from.
    pub fn fresh(fill: u16, send: u16, length: u32) -> Self {
        Self::new(FRESH, Some(fill), [u64::from(length) | (u64::from(send) << 32), 0])
    }

    /// `GETBUF_CMD_PUT`: clears the slot.
    pub fn put(slot: u16) -> Self {
        Self::new(PUT, Some(slot), [0, 0])
    }

    /// `GETBUF_CMD_CANCEL`: ends the `GET` with this user data, if it waits.
    pub fn cancel(user_data: u64) -> Self {
        Self::new(CANCEL, None, [user_data, 0])
    }

    /// The entry for a device by its descriptor.
    pub fn entry(self, device: Fd) -> squeue::Entry {
        opcode::UringCmd16::new(device, self.operation).buf_index(self.slot).cmd(self.bytes).build()
    }

    /// The entry for a device in the ring's table of files.
    pub fn entry_fixed(self, device: Fixed) -> squeue::Entry {
        opcode::UringCmd16::new(device, self.operation).buf_index(self.slot).cmd(self.bytes).build()
    }
}
