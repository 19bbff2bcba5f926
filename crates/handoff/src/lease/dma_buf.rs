//! Foreign memory that a NIC receives into: a dma-buf.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use handoff_sys::dma_buf;

use crate::error::{Error, Result};

/// Memory of a GPU, of a storage card, or of a memfd that another process has mapped, as a dma-buf.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Others read this memory while we receive into it.
/// let memory = handoff::SharedRegion::memfd(16 << 20)?;
/// let dma_buf = handoff::DmaBuf::of_memfd(&memory)?;
/// assert_eq!(dma_buf.len(), 16 << 20);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    len: usize,
}

impl DmaBuf {
    /// Takes a dma-buf by the descriptor that its exporter gave. Take each dma-buf only once: two queues that
    /// receive into the same memory overwrite each other's spans.
    ///
    /// # Errors
    ///
    /// When the descriptor is no dma-buf.
    pub fn new(fd: impl Into<OwnedFd>) -> Result<Self> {
        let fd = fd.into();
        let len = dma_buf::len(fd.as_fd())
            .map_err(|error| Error::io("looking at a dma-buf", error))?
            .ok_or(Error::Invalid("the descriptor is no dma-buf: its exporter gives one"))?;
        Ok(Self { fd, len: len as usize })
    }

    /// Makes a dma-buf of all pages of a memfd, by `/dev/udmabuf` (Linux 4.20), which root may open. The
    /// memfd must be sealed against shrinking, and not against writing, like that of a
    /// [`SharedRegion`](crate::SharedRegion).
    ///
    /// Make only one dma-buf of a memfd; nobody checks this. Queues bound to two of them overwrite each other's
    /// spans.
    ///
    /// # Errors
    ///
    /// When the kernel has no udmabuf, the user may not use it, or the file is not such a memfd.
    pub fn of_memfd(memfd: impl AsFd) -> Result<Self> {
        let made = || {
            let len = rustix::fs::fstat(&memfd)?.st_size as u64;
            dma_buf::of_memfd(memfd.as_fd(), 0, len)
        };
        Self::new(made().map_err(|error: std::io::Error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::EBADFD) => Error::Invalid(
                "a dma-buf is made of a memfd in whole pages, sealed against shrinking and not against writing, \
                 of at most the size_limit_mb of udmabuf",
            ),
            _ => Error::io("making a dma-buf of a memfd (/dev/udmabuf)", error),
        })?)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
