//! `/dev/getbuf`, as far as the bench speaks to it: ids and structures of `kmod/getbuf/getbuf.h`.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

use io_uring::{opcode, squeue::Entry, types::Fixed};

const PATH: &str = "/dev/getbuf";

const fn request(direction: u64, number: u64, bytes: usize) -> u64 {
    direction << 30 | (bytes as u64) << 16 | 0xe7 << 8 | number
}

const QUERY: u64 = request(3, 2, size_of::<Query>());
const GET: u32 = request(2, 0x10, 16) as u32;
const PUT: u32 = request(2, 0x12, 16) as u32;

/// `GETBUF_NULL`: one page of zeros, over and over.
const NULL: u64 = 0xffff;
/// `GETBUF_REPLACE`, and where `GETBUF_FURTHER` has its number.
const REPLACE: u64 = 1 << 2;
const FURTHER_SHIFT: u32 = 8;

/// `struct getbuf_query`.
#[repr(C)]
#[derive(Debug, Default)]
struct Query {
    limits: [u64; 4],
    out: u64,
    _of_these: [u64; 5],
    lent: u64,
    returned: u64,
    _others: [u64; 19],
}

/// What the module says of the lends that were made through an open device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// In a ring now.
    pub(super) out: u64,
    pub(super) lent: u64,
    pub(super) returned: u64,
}

/// The device, open.
pub(super) struct Device(File);

impl Device {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// Why this machine has none, and what to do, in one line.
    pub(super) fn open() -> Result<Self, String> {
        let opened = OpenOptions::new().read(true).write(true).open(PATH);
        opened.map(Self).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!(
                "no {PATH}: the module getbuf is not loaded; build and load it (kmod/getbuf), or use --lab"
            ),
            io::ErrorKind::PermissionDenied => format!("{PATH} is root's: run as root"),
            _ => format!("{PATH}: {error}"),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Asks the module.
    ///
    /// # Errors
    ///
    /// What it answers instead, in one line.
    pub(super) fn counts(&self) -> Result<Counts, String> {
        let mut query = Query::default();
        // SAFETY: the request's number has the size of the structure that it reads and writes.
        let asked = unsafe { libc::ioctl(self.0.as_raw_fd(), QUERY as _, &raw mut query) };
        if asked < 0 {
            return Err(format!("{PATH}, asked for its counts: {}", io::Error::last_os_error()));
        }
        Ok(Counts { out: query.out, lent: query.lent, returned: query.returned })
    }
}

/// Lends the page of zeros into an empty slot, through the device at a place of the ring's files.
pub(super) fn get(device: Fixed, slot: u16, bytes: u32) -> Entry {
    command(device, GET, slot, [0, u64::from(bytes) | NULL << 32])
}

/// Clears so many slots, which may be empty, and lends the page into each.
pub(super) fn get_anew(device: Fixed, slot: u16, slots: u16, bytes: u32) -> Entry {
    let flags = REPLACE | u64::from(slots - 1) << FURTHER_SHIFT;
    command(device, GET, slot, [0, u64::from(bytes) | NULL << 32 | flags << 48])
}

/// Clears a slot.
pub(super) fn put(device: Fixed, slot: u16) -> Entry {
    command(device, PUT, slot, [0, 0])
}

fn command(device: Fixed, operation: u32, slot: u16, words: [u64; 2]) -> Entry {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
    opcode::UringCmd16::new(device, operation).buf_index(Some(slot)).cmd(bytes).build()
}
