//! User memory that other processes may map: memfd regions, and the buffers cut from them.
//!
//! Minimum kernel: 3.17 (`memfd_create`). Only a [`ViewMut`] reaches the bytes, since whoever holds the
//! descriptor may write them at any time. A change by a peer while a buffer is on loan may or may not be
//! sent.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::MapFlags;

use super::region::{self, Cutter, page_size};
use super::{Backed, Backing, Memory, Piece, ViewMut};
use crate::error::{Error, Result};

/// Zeroed memory behind a descriptor that other processes can map.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut region = handoff::SharedRegion::memfd(1 << 20)?;
/// let buffer = region.take(4096).expect("there is room");
/// assert_eq!((region.len(), buffer.len()), (1 << 20, 4096));
/// # Ok(()) }
/// ```
pub struct SharedRegion {
    cutter: Cutter,
    fd: OwnedFd,
}

impl SharedRegion {
    /// Makes a memfd of at least `len` bytes, in whole pages, and maps it.
    ///
    /// # Errors
    ///
    /// When `len` is 0 or the kernel has no memory.
    pub fn memfd(len: usize) -> Result<Self> {
        let len = (len != 0).then(|| len.checked_next_multiple_of(page_size())).flatten().ok_or(
            Error::Invalid("a region needs at least one byte and must fit the address space"),
        )?;
        let make = || {
            let fd = memfd_create("handoff", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&fd, len as u64)?;
            // If a peer shrank the file, our accesses would fault.
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            let backing = region::map(len, MapFlags::SHARED, Some(fd.as_fd()))?;
            Ok(Self { cutter: Cutter::new(backing), fd })
        };
        make().map_err(|error| Error::io("making a memfd region", error))
    }

    /// Length of the region in bytes.
    pub fn len(&self) -> usize {
        self.cutter.backing.len()
    }

    /// A region is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Cuts the next `len` bytes; `None` when fewer are left.
    pub fn take(&mut self, len: usize) -> Option<SharedBuffer> {
        self.cutter.cut(len).map(SharedBuffer::new)
    }
}

impl Memory for SharedRegion {}
impl Backed for SharedRegion {
    fn backing(&self) -> &Arc<Backing> {
        &self.cutter.backing
    }
}

impl AsFd for SharedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedRegion").field("len", &self.len()).field("fd", &self.fd).finish()
    }
}

/// A slice of a [`SharedRegion`] that can be lent.
///
/// It moves between threads, but two threads never access it at once: a [`ViewMut`] mixes access sizes.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut region = handoff::SharedRegion::memfd(1 << 20)?;
/// let buffer = region.take(4096).expect("there is room");
/// let mut word = [0; 5];
/// buffer.view().write(100, b"bytes");
/// buffer.view().read(100, &mut word);
/// assert_eq!(&word, b"bytes");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct SharedBuffer(pub(crate) Piece, PhantomData<Cell<u8>>);

impl SharedBuffer {
    pub(crate) fn new(piece: Piece) -> Self {
        Self(piece, PhantomData)
    }

    /// The bytes in use.
    pub fn view(&self) -> ViewMut<'_> {
        // SAFETY: the piece keeps the mapping, and a shared buffer is reached through views only.
        unsafe { ViewMut::new(self.0.start(), self.0.len()) }
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Bytes that the buffer owns.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Sets the length in use.
    ///
    /// # Panics
    ///
    /// When `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        self.0.set_len(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_sees_what_is_written() {
        let mut region = SharedRegion::memfd(100).unwrap();
        let buffer = region.take(100).unwrap();
        buffer.view().write(3, b"handoff");
        let mut seen = [0; 7];
        rustix::io::pread(region.as_fd(), &mut seen, 3).unwrap();
        assert_eq!(&seen, b"handoff");
        rustix::io::pwrite(region.as_fd(), b"H", 3).unwrap();
        buffer.view().read(3, &mut seen);
        assert_eq!(&seen, b"Handoff");
    }
}
