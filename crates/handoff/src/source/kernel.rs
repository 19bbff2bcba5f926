//! Buffers of the kernel, lent into the ring: pages of the page cache, received data, new pages.
//!
//! Minimum kernel: 7.2 with the module `getbuf` of this project (`docs/get-buf.md`), which makes
//! `/dev/getbuf`. Capability: to open the device, which is root's unless a udev rule says otherwise.
//! Locked memory (`RLIMIT_MEMLOCK`): all that is out, in whole folios. Return signal: none to the
//! process; the module's count of lends that came back ([`Lender::stats`]).
//!
//! Contracts:
//! - the bytes of a lease are in no address of this process: operations of the same driver use them,
//!   nothing else does;
//! - a lease can be in any number of operations at once, since it is only read; its slot is cleared
//!   when the last handle and the last operation have let go of it;
//! - it is no snapshot: who may write to the file changes what is lent, as with `sendfile(2)`.

use std::fmt;
use std::fs::OpenOptions;
use std::future::Future;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use handoff_sys::getbuf;

use crate::driver::Inner;
use crate::endpoint::Endpoint;
use crate::engine::get_buf::{self, GetOp};
use crate::error::{Error, Result};
use crate::inflight::{Key, Op};
use crate::lease::{Extent, Lend, LendMut, Lendable, Loan, Sealed, Span};
use crate::source::request::Answer;

/// Lends buffers of the kernel to the operations of a driver.
#[derive(Clone)]
pub struct Lender {
    pub(crate) shared: Rc<LenderShared>,
    driver: Rc<Inner>,
}

pub(crate) struct LenderShared {
    pub(crate) device: Endpoint,
    /// Weak, since records of the driver own leases.
    driver: Weak<Inner>,
    /// The ring that has the slots.
    ring: u32,
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
            Some(libc::ENOBUFS) => unavailable(
                "as many files are bound as the module allows (sources_max): drop some sources"
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
        let op = GetOp::fresh(&self.shared, &self.driver, len)?;
        Ok(Fresh(Getting::start(Rc::clone(&self.driver), op)?))
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
        let op = GetOp::of_source(&self.shared, &self.driver, offset, len)?;
        Getting::start(Rc::clone(&self.driver), op)
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

/// A lend under way: a future of the lease, or of `None` at the end of the file or stream.
///
/// Dropped, it asks for the wait to end; what was lent by then goes back. Of a stream, those bytes are
/// lost to who reads on.
#[must_use = "what is lent goes back when nobody takes it"]
pub struct Getting {
    driver: Rc<Inner>,
    /// `None` once the lease was taken.
    key: Option<Key>,
}

impl Getting {
    fn start(driver: Rc<Inner>, op: GetOp) -> Result<Self> {
        driver.inflight.borrow().check_room()?;
        let key = driver.inflight.borrow_mut().insert(Op::Get(op));
        get_buf::start(&driver, key);
        Ok(Self { driver, key: Some(key) })
    }

    /// The lease, once there is one.
    ///
    /// # Errors
    ///
    /// Gives itself back until then.
    pub fn try_take(mut self) -> Result<Result<Option<Lease>>, Self> {
        self.take().map(whole).ok_or(self)
    }

    fn take(&mut self) -> Option<Result<Option<Bytes>>> {
        let result = get_buf::take(&self.driver, self.key?)?;
        self.key = None;
        Some(result)
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        let key = self.key.expect("a future is not polled after it was ready");
        let waker = context.waker().clone();
        let before = self.driver.inflight.borrow_mut().get_op(key).waker.replace(waker);
        drop(before);
        Poll::Pending
    }
}

fn whole(result: Result<Option<Bytes>>) -> Result<Option<Lease>> {
    result.map(|bytes| bytes.map(Lease))
}

impl Future for Getting {
    type Output = Result<Option<Lease>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_bytes(context).map(whole)
    }
}

impl Drop for Getting {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            get_buf::let_go(&self.driver, key);
        }
    }
}

impl fmt::Debug for Getting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Getting").field("key", &self.key).finish_non_exhaustive()
    }
}

/// New pages under way: a future of the lease to fill.
#[must_use = "what is lent goes back when nobody takes it"]
#[derive(Debug)]
pub struct Fresh(Getting);

impl Future for Fresh {
    type Output = Result<LeaseMut>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let bytes = self.get_mut().0.poll_bytes(context);
        bytes.map(|result| result.map(|bytes| LeaseMut(bytes.expect("new pages have no end"))))
    }
}

/// What is in slots of the ring on loan, until this is dropped.
#[derive(Debug)]
pub(crate) enum Held {
    /// A lend of the device, whose slots are cleared then.
    Lend(Slots),
    /// The memory of a block request, which is over then.
    Request(Rc<Answer>),
}

/// Slots of the ring that hold one lend. Cleared when dropped.
pub(crate) struct Slots {
    lender: Rc<LenderShared>,
    /// To send and write from.
    slot: u16,
    /// To fill, for new pages.
    fill: Option<u16>,
}

impl Held {
    pub(crate) fn new(lender: Rc<LenderShared>, slot: u16, fill: Option<u16>) -> Self {
        Self::Lend(Slots { lender, slot, fill })
    }

    pub(crate) fn of_request(answer: Rc<Answer>) -> Self {
        Self::Request(answer)
    }

    /// The ring that has it.
    fn ring(&self) -> u32 {
        match self {
            Self::Lend(slots) => slots.lender.ring,
            Self::Request(answer) => answer.queue.ring,
        }
    }

    /// Where it is to be filled, if those are other slots than what is sent and written from.
    fn fill(&self) -> Option<u16> {
        match self {
            Self::Lend(slots) => slots.fill,
            Self::Request(_) => None,
        }
    }

    fn slot(&self) -> u16 {
        match self {
            Self::Lend(slots) => slots.slot,
            Self::Request(answer) => answer.slot(),
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // A driver that is gone has closed its ring, which gave all back.
        let Some(driver) = self.lender.driver.upgrade() else { return };
        for slot in [Some(self.slot), self.fill].into_iter().flatten() {
            driver.mark_clear(&self.lender, slot);
        }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("slot", &self.slot).field("fill", &self.fill).finish()
    }
}

/// A part of a lend, while an operation holds it or a lease does.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Bytes {
    held: Rc<Held>,
    /// Whether the slot to fill is meant.
    fill: bool,
    start: u32,
    len: u32,
}

impl Bytes {
    pub(crate) fn new(held: Held, len: u32) -> Self {
        let fill = held.fill().is_some();
        Self { held: Rc::new(held), fill, start: 0, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// What is left behind the first `skip` bytes, which it has.
    pub(crate) fn behind(&self, skip: usize) -> Span {
        let slot = if self.fill { self.held.fill() } else { Some(self.held.slot()) };
        // Requests name bytes of such a buffer by their distance from its beginning.
        let start = std::ptr::without_provenance_mut(self.start as usize + skip);
        Span { start, len: self.len() - skip, slot }
    }

    fn extent(&self) -> Extent {
        Extent { pieces: 1, bytes: self.len(), home: Some(self.held.ring()) }
    }

    fn from_loan(loan: Loan) -> Self {
        match loan {
            Loan::Kernel(bytes) => bytes,
            other => unreachable!("a lease was lent and {other:?} came back"),
        }
    }
}

/// A buffer of the kernel, lent for reading: sockets send it, files are written from it. It is part of a
/// file, of what a socket received ([`Lender`]), or what a block request writes
/// ([`Request::source`](crate::Request::source)).
///
/// Clones and parts share the buffer, and may be in several operations at once. It goes back when all
/// of them are dropped and done.
#[derive(Clone, Debug)]
pub struct Lease(Bytes);

impl Lease {
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is a part without bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of it, as a lease of its own.
    ///
    /// # Panics
    ///
    /// When the range is not within the length.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "{start}..{end} is not within {}", self.len());
        let mut bytes = self.0.clone();
        bytes.start += start as u32;
        bytes.len = (end - start) as u32;
        Self(bytes)
    }
}

impl Sealed for Lease {}
impl Lend for Lease {}
impl Lendable for Lease {
    fn extent(&self) -> Extent {
        self.0.extent()
    }

    fn into_loan(self) -> Loan {
        Loan::Kernel(self.0)
    }

    fn from_loan(loan: Loan) -> Self {
        Self(Bytes::from_loan(loan))
    }
}

/// New pages of the kernel, or the memory of a block request, lent to be filled: files are read into it.
#[derive(Debug)]
pub struct LeaseMut(Bytes);

impl LeaseMut {
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What is to be filled is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Ends the filling of new pages: the first `len` bytes, to be sent and written.
    ///
    /// # Panics
    ///
    /// When `len` is more than its length, and of the memory of a block request, which is for its reader
    /// only.
    pub fn freeze(self, len: usize) -> Lease {
        assert!(self.0.fill, "the memory of a block request can only be filled");
        Lease(Bytes { fill: false, ..self.0 }).part(..len)
    }
}

impl Sealed for LeaseMut {}
impl LendMut for LeaseMut {}
impl Lendable for LeaseMut {
    fn extent(&self) -> Extent {
        self.0.extent()
    }

    fn into_loan(self) -> Loan {
        Loan::Kernel(self.0)
    }

    fn from_loan(loan: Loan) -> Self {
        Self(Bytes::from_loan(loan))
    }
}
