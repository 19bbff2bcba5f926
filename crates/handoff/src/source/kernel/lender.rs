//! The device, and what it is to lend from.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use handoff_sys::getbuf;

use super::getting::{Fresh, Getting};
use crate::driver::Inner;
use crate::endpoint::Endpoint;
use crate::engine::get_buf::GetOp;
use crate::error::{Error, Result};

/// Lends buffers of the kernel to the operations of a driver.
#[derive(Clone)]
pub struct Lender {
    pub(crate) shared: Rc<LenderShared>,
    driver: Rc<Inner>,
}

pub(crate) struct LenderShared {
    pub(crate) device: Endpoint,
    /// Weak, since records of the driver own leases.
    pub(super) driver: Weak<Inner>,
    /// The ring that has the slots.
    pub(super) ring: u32,
}

/// What a [`Lender`] has out, and had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LendStats {
    /// Buffers that are lent now.
    pub out: u64,
    /// Bytes of these, in whole folios.
    pub bytes_out: u64,
    /// Buffers lent so far.
    pub lent: u64,
    /// Buffers that came back, whole.
    pub returned: u64,
    /// Bytes of all that were lent.
    pub lent_bytes: u64,
    /// Of which the kernel had to copy so many, since they could not be lent where they were.
    pub copied_bytes: u64,
}

impl Lender {
    /// # Errors
    ///
    /// [`Error::NoRing`], or [`Error::EngineUnavailable`] with what is missing.
    pub(crate) fn open(driver: &Rc<Inner>) -> Result<Self> {
        if driver.ring_id() == 0 {
            return Err(driver.no_ring("lending buffers of the kernel"));
        }
        let device =
            OpenOptions::new().read(true).write(true).open(getbuf::PATH).map_err(|error| {
                match why_not(&error) {
                    (reason, Some(remedy)) => unavailable(format!("{reason} ({remedy})")),
                    (reason, None) => unavailable(reason),
                }
            })?;
        getbuf::query(&device)
            .map_err(|error| unavailable(format!("{} does not answer: {error}", getbuf::PATH)))?;
        let shared = LenderShared {
            device: Endpoint::attach(driver, device.into()),
            driver: Rc::downgrade(driver),
            ring: driver.ring_id(),
        };
        Ok(Self { shared: Rc::new(shared), driver: Rc::clone(driver) })
    }

    /// Readies a file, block device or TCP socket to be lent from. Reading the same socket by other
    /// ways meanwhile makes both get parts of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`] when the module can't lend from it, with the reason;
    /// [`Error::Io`] with `EBADF` when it is not open for reading.
    pub fn source(&self, file: impl AsFd) -> Result<KernelSource> {
        let bound = getbuf::bind(&self.shared.device.fd, file.as_fd());
        let id = bound.map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EINVAL) => unavailable(format!(
                "the module does not lend from this kind of file ({error}): it takes regular files and \
                 block devices of local file systems, and TCP sockets"
            )),
            Some(libc::EMFILE) => unavailable(
                "as many files are bound as the module or RLIMIT_NOFILE allows: drop some sources"
                    .to_owned(),
            ),
            _ => Error::io("binding a file to be lent from", error),
        })?;
        let shared = Rc::new(Binding { lender: Rc::clone(&self.shared), id });
        Ok(KernelSource { shared, driver: Rc::clone(&self.driver) })
    }

    /// Asks for `len` bytes of new, zeroed pages to be read into and then sent or written.
    ///
    /// # Errors
    ///
    /// When too many operations are under way, or the table of registered buffers has no two slots.
    pub fn fresh(&self, len: u32) -> Result<Fresh> {
        let getting = Getting::start(Rc::clone(&self.driver), |driver| {
            GetOp::fresh(&self.shared, driver, len)
        });
        getting.map(Fresh)
    }

    /// What is out, and was.
    ///
    /// # Errors
    ///
    /// When the device does not answer.
    pub fn stats(&self) -> Result<LendStats> {
        let query = getbuf::query(&self.shared.device.fd)
            .map_err(|error| Error::io("asking for lends", error))?;
        Ok(LendStats {
            out: query.lends,
            bytes_out: query.bytes,
            lent: query.lent,
            returned: query.returned,
            lent_bytes: query.lent_bytes,
            copied_bytes: query.copied_bytes,
        })
    }
}

fn unavailable(reason: String) -> Error {
    Error::EngineUnavailable { engine: "get-buf", reason }
}

/// Why the device is not to be had, and what to do, where that is known.
pub(crate) fn why_not(error: &io::Error) -> (String, Option<&'static str>) {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => (
            format!("there is no {}: the module getbuf is not loaded", getbuf::PATH),
            Some("build and load the module: kmod/getbuf/README.md says how"),
        ),
        Some(libc::EACCES | libc::EPERM) => (
            format!("{} may not be opened: {error}", getbuf::PATH),
            Some("run as root, or let a udev rule give this user the device"),
        ),
        _ => (format!("{} cannot be opened: {error}", getbuf::PATH), None),
    }
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").field("device", &self.shared.device.fd).finish()
    }
}

/// A file that the device has bound.
pub(crate) struct Binding {
    pub(crate) lender: Rc<LenderShared>,
    pub(crate) id: u16,
}

impl Drop for Binding {
    fn drop(&mut self) {
        if let Err(error) = getbuf::unbind(&self.lender.device.fd, self.id) {
            tracing::warn!(%error, "a file stays bound to be lent from");
        }
    }
}

/// A file, block device or TCP socket to be lent from.
pub struct KernelSource {
    shared: Rc<Binding>,
    driver: Rc<Inner>,
}

impl KernelSource {
    /// Asks for at most `len` bytes of a file or block device at `offset`.
    ///
    /// What is not in the page cache is read first, by a worker of the ring.
    ///
    /// # Errors
    ///
    /// When too many operations are under way, or the table of registered buffers is full
    /// ([`DriverBuilder::registered_buffers`](crate::DriverBuilder::registered_buffers)).
    pub fn get_at(&self, offset: u64, len: u32) -> Result<Getting> {
        Getting::start(Rc::clone(&self.driver), |driver| {
            GetOp::of_source(&self.shared, driver, offset, len)
        })
    }

    /// Asks for at most `len` of the next bytes of a stream, when there are any. Several that wait
    /// get theirs in order.
    ///
    /// # Errors
    ///
    /// As [`get_at`](Self::get_at).
    pub fn get(&self, len: u32) -> Result<Getting> {
        self.get_at(0, len)
    }
}

impl fmt::Debug for KernelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelSource").field("id", &self.shared.id).finish_non_exhaustive()
    }
}
