//! The device that lends buffers of the kernel, its sources, and lends under way as futures.
//!
//! Minimum kernel, capability and return signal: as [`lease::kernel`](crate::lease::kernel) says.

use std::fmt;
use std::fs::OpenOptions;
use std::future::Future;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use handoff_sys::getbuf;

use crate::core::Core;
use crate::engine::get_buf;
use crate::error::{Error, Result};
use crate::handle::{Awaited, Handle};
use crate::lease::getbuf_device::{Binding, GetBufShared};
use crate::lease::{Bytes, Lease, LeaseMut};
use crate::op::{GetOp, Op};
use crate::reactor::Reactor;
use crate::ring::{Endpoint, Key};

/// Lends buffers of the kernel to the operations of a driver.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::Driver;
///
/// let driver = Driver::new()?;
/// let file = std::fs::File::open("disk.img")?;
/// let socket = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// let source = driver.get_buf()?.source(&file)?;
/// let sent = driver.block_on(async {
///     let lease = source.get_at(0, 1 << 16)?.await?.expect("the file is not empty");
///     socket.send(lease).map_err(|refused| refused.error)?.await?.sent
/// })??;
/// println!("{sent} bytes from the page cache");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct GetBuf {
    pub(crate) shared: Rc<GetBufShared>,
    driver: Rc<Reactor>,
}

/// Counts of what a [`GetBuf`] has lent.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver) -> Result<(), Box<dyn std::error::Error>> {
/// let stats = driver.get_buf()?.stats()?;
/// println!("{} of {} lends are back, {} bytes copied", stats.returned, stats.lent, stats.copied_bytes);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetBufStats {
    /// Buffers on loan now.
    pub out: u64,
    /// Bytes of these, in whole folios.
    pub bytes_out: u64,
    /// Buffers lent so far.
    pub lent: u64,
    /// Buffers that came back, whole.
    pub returned: u64,
    /// Bytes lent so far.
    pub lent_bytes: u64,
    /// Of these, bytes that the kernel had to copy, because it could not lend them in place.
    pub copied_bytes: u64,
}

impl GetBuf {
    /// The device of the driver, which its other holders count together.
    ///
    /// # Errors
    ///
    /// [`Error::NoRing`], or [`Error::EngineUnavailable`] with what is missing.
    pub(crate) fn open(driver: &Rc<Reactor>) -> Result<Self> {
        if let Some(shared) = driver.core.getbuf.borrow().upgrade() {
            return Ok(Self { shared, driver: Rc::clone(driver) });
        }
        let opened = Self::open_apart(driver)?;
        *driver.core.getbuf.borrow_mut() = Rc::downgrade(&opened.shared);
        Ok(opened)
    }

    /// A device that counts only what it lends itself.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub(crate) fn open_apart(driver: &Rc<Reactor>) -> Result<Self> {
        if driver.core.io.ring_id() == 0 {
            return Err(driver.core.io.no_ring("lending buffers of the kernel"));
        }
        let opened = OpenOptions::new().read(true).write(true).open(getbuf::PATH);
        let device = opened.map_err(|error| {
            let reason = handoff_probe::why_no_get_buf(&error);
            // Nothing else, such as a lack of descriptors, lasts.
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) {
                *driver.core.no_getbuf.borrow_mut() = Some(reason.clone());
            }
            unavailable(reason)
        })?;
        *driver.core.no_getbuf.borrow_mut() = None;
        getbuf::query(&device)
            .map_err(|error| unavailable(format!("{} does not answer: {error}", getbuf::PATH)))?;
        let shared = GetBufShared {
            device: Endpoint::attach(&driver.core.io, device.into()),
            ring: driver.core.io.ring_id(),
        };
        Ok(Self { shared: Rc::new(shared), driver: Rc::clone(driver) })
    }

    /// Whether there is a device, as far as this driver has looked: it does not look again.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`], if the driver has not found one.
    pub(crate) fn not_missing(driver: &Rc<Reactor>) -> Result<()> {
        let missing = driver.core.no_getbuf.borrow().clone();
        missing.map_or(Ok(()), |reason| Err(unavailable(reason)))
    }

    /// Prepares a file, block device or TCP socket for lending. If you also read the socket in another way,
    /// each reader gets parts of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`] when the module cannot lend from it, with the reason; [`Error::Io`]
    /// with `EBADF` when it is not open for reading.
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
        let shared = Rc::new(Binding { getbuf: Rc::clone(&self.shared), id });
        Ok(KernelSource { shared, driver: Rc::clone(&self.driver) })
    }

    /// Asks for `len` bytes of new, zeroed pages, to read into and then send or write.
    ///
    /// # Errors
    ///
    /// When too many operations are under way, or the table of registered buffers does not have two free
    /// slots.
    pub fn fresh(&self, len: u32) -> Result<Fresh> {
        let getting = Getting::start(Rc::clone(&self.driver), |driver| {
            get_buf::fresh(&self.shared, driver, len)
        });
        getting.map(|getting| Fresh(getting.0))
    }

    /// What is on loan now, and what was lent so far.
    ///
    /// # Errors
    ///
    /// When the device does not answer.
    pub fn stats(&self) -> Result<GetBufStats> {
        let query = getbuf::query(&self.shared.device.fd)
            .map_err(|error| Error::io("asking for lends", error))?;
        Ok(GetBufStats {
            out: query.lends,
            bytes_out: query.bytes,
            lent: query.lent,
            returned: query.returned,
            lent_bytes: query.lent_bytes,
            copied_bytes: query.copied_bytes,
        })
    }
}

impl fmt::Debug for GetBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetBuf").field("device", &self.shared.device.fd).finish()
    }
}

/// A file, block device or TCP socket whose buffers the kernel lends.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, file: std::fs::File) -> Result<(), Box<dyn std::error::Error>> {
/// let source = driver.get_buf()?.source(&file)?;
/// let mut offset = 0;
/// while let Some(lease) = source.get_at(offset, 1 << 16)?.await? {
///     offset += lease.len() as u64;
/// }
/// # Ok(()) }
/// ```
pub struct KernelSource {
    shared: Rc<Binding>,
    driver: Rc<Reactor>,
}

impl KernelSource {
    /// Asks for at most `len` bytes of a file or block device at `offset`.
    ///
    /// A worker of the ring first reads what is not in the page cache.
    ///
    /// # Errors
    ///
    /// When too many operations are under way, or the table of registered buffers is full
    /// ([`DriverBuilder::registered_buffers`](crate::DriverBuilder::registered_buffers)).
    pub fn get_at(&self, offset: u64, len: u32) -> Result<Getting> {
        Getting::start(Rc::clone(&self.driver), |driver| {
            get_buf::of_source(&self.shared, driver, offset, len)
        })
    }

    /// Asks for at most `len` of the next bytes of a stream, when there are any. Several requests get
    /// theirs in order.
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

/// A lend under way: a future of the lease, or of `None` at the end of the file or stream.
///
/// Dropping it ends the wait, and gives back what was lent by then. Later readers then miss those bytes of
/// a stream.
///
/// ```no_run
/// # async fn example(stream: handoff::KernelSource) -> Result<(), Box<dyn std::error::Error>> {
/// match stream.get(1 << 16)?.await? {
///     Some(lease) => println!("{} received bytes", lease.len()),
///     None => println!("the stream has ended"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "what is lent goes back when nobody takes it"]
#[derive(Debug)]
pub struct Getting(Handle<Got>);

/// The kernel has lent, or refused.
pub(crate) enum Got {}

impl Awaited for Got {
    type Key = Key;
    type Output = Result<Option<Bytes>>;

    fn take(core: &Core, key: Key) -> Option<Result<Option<Bytes>>> {
        get_buf::take(core, key)
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().get_op(key).holder.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        get_buf::let_go(core, key);
    }

    fn without_driver(error: Error) -> Result<Option<Bytes>> {
        Err(error)
    }
}

impl Getting {
    /// Takes the slots of `op` only if there is room for it.
    fn start(driver: Rc<Reactor>, op: impl FnOnce(&Core) -> Result<GetOp>) -> Result<Self> {
        driver.core.check_room()?;
        let op = op(&driver.core)?;
        let key = driver.core.records.borrow_mut().insert(|| Op::Get(op));
        get_buf::start(&driver.core, key);
        Ok(Self(Handle::new(driver, key)))
    }

    /// The lease, once there is one.
    ///
    /// # Errors
    ///
    /// Returns itself until then.
    pub fn try_take(mut self) -> Result<Result<Option<Lease>>, Self> {
        self.0.take().map(whole).ok_or(self)
    }
}

fn whole(result: Result<Option<Bytes>>) -> Result<Option<Lease>> {
    result.map(|bytes| bytes.map(Lease))
}

impl Future for Getting {
    type Output = Result<Option<Lease>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(whole)
    }
}

/// New pages under way: a future of the lease to fill.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, file: handoff::File) -> Result<(), Box<dyn std::error::Error>> {
/// let pages = driver.get_buf()?.fresh(1 << 16)?.await?;
/// let read = file.read_at(pages, 0)?.await?;
/// let lease = read.buffer.freeze(read.result?);
/// println!("{} bytes to send", lease.len());
/// # Ok(()) }
/// ```
#[must_use = "what is lent goes back when nobody takes it"]
#[derive(Debug)]
pub struct Fresh(Handle<Got>);

impl Future for Fresh {
    type Output = Result<LeaseMut>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let bytes = Pin::new(&mut self.0).poll(context);
        bytes.map(|result| result.map(|bytes| LeaseMut(bytes.expect("new pages have no end"))))
    }
}

fn unavailable(reason: String) -> Error {
    Error::EngineUnavailable { engine: "get-buf", reason }
}
