//! The few device-mapper requests for one device with one target, or two in a row.
//!
//! Kernel interface: the ioctls of `/dev/mapper/control`, linux/dm-ioctl.h, version 4.0.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd as _,
};

const DEV_CREATE: libc::Ioctl = 3;
const DEV_REMOVE: libc::Ioctl = 4;
const DEV_SUSPEND: libc::Ioctl = 6;
const TABLE_LOAD: libc::Ioctl = 9;
const TARGET_MSG: libc::Ioctl = 14;
/// Suspend, where it would resume otherwise.
const SUSPEND: u32 = 1 << 1;
/// Remove the device when its last user has gone.
const DEFERRED_REMOVE: u32 = 1 << 17;
const SECTOR: u64 = 512;
/// Room for a target's parameters.
const ROOM: usize = 512;

/// `struct dm_ioctl`.
#[repr(C)]
struct Head {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    device: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

/// `struct dm_target_spec`.
#[repr(C)]
struct Target {
    start: u64,
    length: u64,
    status: i32,
    next: u32,
    kind: [u8; 16],
}

/// One target and its parameters.
#[repr(C)]
struct Row {
    target: Target,
    parameters: [u8; ROOM],
}

/// `struct dm_target_msg`, for the target of the first sector.
#[repr(C)]
struct Message {
    sector: u64,
    text: [u8; ROOM],
}

/// A request, with what comes behind its head: plain data, for which all-zero bytes are valid.
#[repr(C)]
struct Request<D> {
    head: Head,
    data: D,
}

const _: () = assert!(size_of::<Head>() == 312 && size_of::<Target>() == 40);

/// Bytes of a device that one target serves.
pub(super) struct Part<'a> {
    pub(super) kind: &'a str,
    pub(super) parameters: &'a str,
    pub(super) bytes: u64,
}

/// A device of the device mapper, removed on drop.
#[derive(Debug)]
pub(super) struct Mapped {
    control: File,
    name: String,
    /// Its number: `/dev/dm-NUMBER`.
    pub(super) number: u64,
}

impl Mapped {
    /// Makes a device without a table; it takes no requests yet.
    pub(super) fn new(name: String) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/mapper/control")?;
        let mut device = Self { control, name, number: 0 };
        let mut request = device.request::<()>();
        let made = device.ask(DEV_CREATE, &mut request);
        if let Err(error) = made {
            // Not ours, so do not remove it.
            device.name.clear();
            return Err(error);
        }
        let encoded = request.head.device;
        device.number = (encoded & 0xff) | ((encoded >> 12) & 0xfff00);
        Ok(device)
    }

    /// Gives it a target, or two in a row, and replaces those before.
    pub(super) fn set(&self, parts: &[Part<'_>]) -> io::Result<()> {
        let mut request = self.request::<[Row; 2]>();
        request.head.target_count = parts.len() as u32;
        let mut start = 0;
        for (row, part) in request.data.iter_mut().zip(parts) {
            let length = part.bytes / SECTOR;
            (row.target.start, row.target.length) = (start, length);
            row.target.next = size_of::<Row>() as u32;
            fill(&mut row.target.kind, part.kind)?;
            fill(&mut row.parameters, part.parameters)?;
            start += length;
        }
        self.ask(TABLE_LOAD, &mut request)?;
        // Resuming makes the loaded table the one in use.
        self.resume()
    }

    /// Returns when no request is under way any more. Those that come wait.
    pub(super) fn suspend(&self) -> io::Result<()> {
        let mut request = self.request::<()>();
        request.head.flags = SUSPEND;
        self.ask(DEV_SUSPEND, &mut request)
    }

    pub(super) fn resume(&self) -> io::Result<()> {
        self.ask(DEV_SUSPEND, &mut self.request::<()>())
    }

    /// Tells its target something.
    pub(super) fn tell(&self, text: &str) -> io::Result<()> {
        let mut request = self.request::<Message>();
        fill(&mut request.data.text, text)?;
        self.ask(TARGET_MSG, &mut request)
    }

    fn request<D>(&self) -> Request<D> {
        // SAFETY: all-zero bytes are a valid request, which is plain data.
        let mut request: Request<D> = unsafe { std::mem::zeroed() };
        request.head.version = [4, 0, 0];
        request.head.data_size = size_of::<Request<D>>() as u32;
        request.head.data_start = size_of::<Head>() as u32;
        request
    }

    fn ask<D>(&self, number: libc::Ioctl, request: &mut Request<D>) -> io::Result<()> {
        const READ_AND_WRITE: libc::Ioctl = 3;
        const TYPE: libc::Ioctl = 0xfd;
        fill(&mut request.head.name, &self.name)?;
        let number =
            READ_AND_WRITE << 30 | (size_of::<Head>() as libc::Ioctl) << 16 | TYPE << 8 | number;
        // SAFETY: the request is live, and says its whole size, within which the kernel writes.
        let answer = unsafe { libc::ioctl(self.control.as_raw_fd(), number, &raw mut *request) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A terminated string.
fn fill(field: &mut [u8], text: &str) -> io::Result<()> {
    if text.len() >= field.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    field[..text.len()].copy_from_slice(text.as_bytes());
    Ok(())
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.name.is_empty() {
            return;
        }
        let mut request = self.request::<()>();
        request.head.flags = DEFERRED_REMOVE;
        if let Err(error) = self.ask(DEV_REMOVE, &mut request) {
            tracing::warn!("the device {} stays: {error}", self.name);
        }
    }
}
