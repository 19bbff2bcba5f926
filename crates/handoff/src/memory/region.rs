//! User memory as a source: regions, and the buffers cut from them.
//!
//! Minimum kernel: any. Registering a region with a ring needs Linux 5.19 (sparse buffer tables) and room
//! under `RLIMIT_MEMLOCK` unless the process has `CAP_IPC_LOCK`. This module lends nothing; the return
//! signal belongs to the sink that a buffer is lent to.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use handoff_sys::process::Process;
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

use super::{Backed, Backing, Memory, Piece};
use crate::error::{Error, Result};

/// A huge page on x86-64, and on arm64 with 4 KiB base pages.
const HUGE_PAGE: usize = 2 << 20;

/// A buffer starts on a cache line of its own unless its size prevents that.
const ALIGNMENT: usize = 64;

/// From the start of one buffer of `len` bytes to that of the next.
pub(crate) fn stride(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// How many buffers of `len` bytes fit; 0 if `len` is 0.
pub(crate) fn places(memory: usize, len: usize) -> usize {
    if len == 0 || len > memory { 0 } else { (memory + stride(len) - len) / stride(len) }
}

/// A mapping that goes away with its owner.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    made_by: Process,
}

// SAFETY: unmapping is all that an owner of a mapping does, and any thread may do it.
unsafe impl Send for Mapping {}
// SAFETY: there is nothing to do through a shared reference.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Mostly a child does not have it, and may have something else there by now.
        if !self.made_by.is_this() {
            return;
        }
        // SAFETY: the range was mapped by us, and its owner is the last that refers to it.
        if let Err(error) = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::error!(%error, len = self.len, "unmapping a region failed");
        }
    }
}

/// The pages that a region is made of.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Pages, Region};
///
/// let region = Region::huge(1 << 21)?;
/// if let Pages::BaseInsteadOfHuge(reason) = region.pages() {
///     println!("no huge pages: {reason}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Pages of the base size.
    Base,
    /// Huge pages of 2 MiB from the reserved pool (`vm.nr_hugepages`).
    Huge,
    /// Huge pages of 2 MiB that the kernel assembled because the pool had none (Linux 6.1). It may split
    /// them again when memory is short, unless they are registered or on loan.
    Transparent,
    /// You asked for huge pages; this says why there are none.
    BaseInsteadOfHuge(String),
}

pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

fn round_up(len: usize, to: usize) -> Result<usize> {
    if len == 0 {
        return Err(Error::Invalid("a region needs at least one byte"));
    }
    len.checked_next_multiple_of(to)
        .ok_or(Error::Invalid("a region this long does not fit the address space"))
}

/// Maps `len` bytes, of `fd` if given, and populates them, so that the first use causes no faults.
pub(crate) fn map(
    len: usize,
    flags: MapFlags,
    fd: Option<rustix::fd::BorrowedFd<'_>>,
) -> io::Result<Arc<Backing>> {
    map_by(len, flags | MapFlags::POPULATE, fd)
}

fn map_by(
    len: usize,
    flags: MapFlags,
    fd: Option<rustix::fd::BorrowedFd<'_>>,
) -> io::Result<Arc<Backing>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an address that is free.
    let start = unsafe {
        match fd {
            Some(fd) => mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0),
            None => mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags),
        }
    }?;
    Ok(own(NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len, fd.is_none()))
}

/// Maps `len` bytes, a multiple of [`HUGE_PAGE`], of transparent huge pages.
fn map_transparent(len: usize) -> io::Result<Arc<Backing>> {
    let longer = len.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an address that is free.
    let mapped =
        unsafe { mm::mmap_anonymous(std::ptr::null_mut(), longer, prot, MapFlags::PRIVATE) }?;
    let before = mapped.cast::<u8>().align_offset(HUGE_PAGE);
    // SAFETY: the range lies in the new mapping, and nothing uses what is left over at its ends.
    let start = unsafe {
        let start = mapped.cast::<u8>().add(before);
        if before > 0 {
            mm::munmap(mapped, before)?;
        }
        mm::munmap(start.add(len).cast(), HUGE_PAGE - before)?;
        start
    };
    let backing = own(NonNull::new(start).ok_or(Errno::NOMEM)?, len, true);
    // SAFETY: advice on the new mapping, of which nothing is in use; all of it leaves the bytes
    // zero. Collapsing fails unless huge pages are what there is afterwards.
    unsafe {
        // Saves the kernel the work of making base pages first, where the system allows it.
        let _ = mm::madvise(start.cast(), len, mm::Advice::LinuxHugepage);
        mm::madvise(start.cast(), len, mm::Advice::LinuxPopulateWrite)?;
        if libc::madvise(start.cast(), len, libc::MADV_COLLAPSE) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(backing)
}

/// Takes `len` bytes of address space that nobody may access.
fn reserve(len: usize) -> io::Result<Arc<Backing>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses an address that is free.
    let start =
        unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) }?;
    Ok(own(NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len, true))
}

/// Turns a mapping whose address nobody else knows into a backing. The mapping is zeroed, readable and
/// writable; otherwise whoever cuts pieces from it must use them accordingly.
pub(crate) fn own(start: NonNull<u8>, len: usize, private: bool) -> Arc<Backing> {
    if private {
        // A fork would copy every page that a ring or a send has pinned, and fail if the huge page pool has
        // no second set. Children that exec do not need the pages.
        // SAFETY: the range was just mapped. Without the advice forks are only slower.
        let _ = unsafe { mm::madvise(start.as_ptr().cast(), len, mm::Advice::LinuxDontFork) };
    }
    let mapping = Mapping { start, len, made_by: Process::this() };
    // SAFETY: the mapping is as described and goes away only with its owner.
    unsafe { Backing::new(start, len, true, Box::new(mapping)) }
}

/// The next free range of a backing; each range is handed out once.
pub(crate) struct Cutter {
    pub(crate) backing: Arc<Backing>,
    next: usize,
}

impl Cutter {
    pub(crate) fn new(backing: Arc<Backing>) -> Self {
        Self { backing, next: 0 }
    }

    pub(crate) fn cut(&mut self, len: usize) -> Option<Piece> {
        let start = self.next.next_multiple_of(ALIGNMENT);
        let end = start.checked_add(len).filter(|end| *end <= self.backing.len())?;
        self.next = end;
        // SAFETY: `next` only grows, so the range was not handed out before.
        Some(unsafe { Piece::new(self.backing.clone(), start, len) })
    }

    pub(crate) fn free(&self) -> usize {
        self.backing.len() - self.next.next_multiple_of(ALIGNMENT).min(self.backing.len())
    }
}

/// Zeroed memory of this process, in whole pages, that buffers are cut from.
///
/// The memory is unmapped when the region and all of its buffers are gone.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut region = handoff::Region::anonymous(1 << 20)?;
/// let mut buffer = region.take(4096).expect("there is room");
/// buffer.fill(7);
/// drop(region); // the buffer keeps the memory
/// assert_eq!(buffer[4095], 7);
/// # Ok(()) }
/// ```
pub struct Region {
    cutter: Cutter,
    pages: Pages,
}

impl Region {
    /// Maps at least `len` bytes of base pages.
    ///
    /// # Errors
    ///
    /// When `len` is 0 or the kernel has no memory.
    pub fn anonymous(len: usize) -> Result<Self> {
        let len = round_up(len, page_size())?;
        let backing = map(len, MapFlags::PRIVATE, None)
            .map_err(|error| Error::io("mapping a region", error))?;
        Ok(Self { cutter: Cutter::new(backing), pages: Pages::Base })
    }

    /// Reserves address space for at least `len` bytes of base pages. The kernel provides the pages at their first
    /// use or registration: for an rx queue that [grows](crate::RxBinding::grows_from).
    ///
    /// # Errors
    ///
    /// As [`anonymous`](Self::anonymous), except lack of memory, which later ends the process.
    pub fn reserved(len: usize) -> Result<Self> {
        let len = round_up(len, page_size())?;
        let backing = map_by(len, MapFlags::PRIVATE | MapFlags::NORESERVE, None)
            .map_err(|error| Error::io("reserving address space", error))?;
        Ok(Self { cutter: Cutter::new(backing), pages: Pages::Base })
    }

    /// Maps at least `len` bytes of 2 MiB pages: from the reserved pool, else transparent ones, else base
    /// pages; [`pages`](Self::pages) says which and why.
    ///
    /// # Errors
    ///
    /// As [`anonymous`](Self::anonymous).
    pub fn huge(len: usize) -> Result<Self> {
        let rounded = round_up(len, HUGE_PAGE)?;
        let pool = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        let from_pool = match map(rounded, pool, None) {
            Ok(backing) => return Ok(Self { cutter: Cutter::new(backing), pages: Pages::Huge }),
            Err(error) => error,
        };
        match map_transparent(rounded) {
            Ok(backing) => {
                tracing::info!(%from_pool, "transparent huge pages instead of reserved ones");
                Ok(Self { cutter: Cutter::new(backing), pages: Pages::Transparent })
            }
            Err(error) => {
                let reason = format!(
                    "{} free huge pages of 2 MiB are needed ({from_pool}; transparent ones: {error}): \
                     reserve them with sysctl vm.nr_hugepages",
                    rounded / HUGE_PAGE
                );
                tracing::info!(%reason, "base pages instead of huge pages");
                Ok(Self { pages: Pages::BaseInsteadOfHuge(reason), ..Self::anonymous(len)? })
            }
        }
    }

    /// Address space that stands for memory outside this process: accesses fault.
    pub(crate) fn inaccessible(len: usize) -> Result<Self> {
        let backing = reserve(round_up(len, page_size())?)
            .map_err(|error| Error::io("taking address space", error))?;
        Ok(Self { cutter: Cutter::new(backing), pages: Pages::Base })
    }

    /// The kind of the region's pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Length of the region in bytes.
    pub fn len(&self) -> usize {
        self.cutter.backing.len()
    }

    /// A region is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes that are not yet cut into buffers.
    pub fn free(&self) -> usize {
        self.cutter.free()
    }

    /// Cuts the next `len` bytes; `None` when fewer are left.
    pub fn take(&mut self, len: usize) -> Option<Buffer> {
        self.cutter.cut(len).map(Buffer)
    }

    /// Cuts the rest into buffers of `len` bytes each.
    pub fn chunks(&mut self, len: usize) -> Vec<Buffer> {
        if len == 0 { Vec::new() } else { std::iter::from_fn(|| self.take(len)).collect() }
    }
}

impl Memory for Region {}
impl Backed for Region {
    fn backing(&self) -> &Arc<Backing> {
        &self.cutter.backing
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len()).field("pages", &self.pages).finish()
    }
}

/// Bytes of this process with one owner: a slice that can be lent.
///
/// Like a `Vec`, it has a length in use and a capacity; a send lends the length. All of the capacity is
/// initialised.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut region = handoff::Region::anonymous(4096)?;
/// let mut payload = region.take(4096).expect("there is room");
/// let mut header = payload.split_to(16);
/// header.copy_from_slice(b"sixteen bytes !!");
/// payload.set_len(100);
/// assert_eq!((header.len(), payload.len(), payload.capacity()), (16, 100, 4080));
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct Buffer(pub(crate) Piece);

impl Buffer {
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

    /// Cuts off the first `at` bytes in use as a buffer of their own.
    ///
    /// # Panics
    ///
    /// When `at` is more than the length.
    pub fn split_to(&mut self, at: usize) -> Self {
        Self(self.0.split_to(at))
    }

    /// Joins the buffer that directly follows this one in its region, as after
    /// [`split_to`](Self::split_to).
    ///
    /// # Errors
    ///
    /// Returns `next` when it does not follow.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        self.0.join(next.0).map_err(Self)
    }
}

impl From<Vec<u8>> for Buffer {
    /// Makes heap memory lendable. It cannot be registered with a ring.
    fn from(mut bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is never null");
        // SAFETY: the vector is moved into the backing, which keeps its bytes at their address until
        // it is dropped, and nobody else can reach them.
        let backing = unsafe { Backing::new(start, len, false, Box::new(bytes)) };
        // SAFETY: it is the only piece of the backing.
        Self(unsafe { Piece::new(backing, 0, len) })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece owns initialised bytes alone, which only this process can reach, borrowed
        // shared here.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr(), self.0.len()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed exclusively here.
        unsafe { std::slice::from_raw_parts_mut(self.0.start().as_ptr(), self.0.len()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_region_is_zeroed_whole_pages() {
        let mut region = Region::anonymous(1).unwrap();
        assert_eq!(region.len(), page_size());
        let buffer = region.take(page_size()).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0));
        assert!(region.take(1).is_none());
        assert!(Region::anonymous(0).is_err());
    }

    #[test]
    fn huge_pages_or_the_reason() {
        let region = Region::huge(1).unwrap();
        match region.pages() {
            Pages::Huge | Pages::Transparent => {
                assert_eq!(region.len(), HUGE_PAGE);
                assert_eq!(region.backing().start().as_ptr().addr() % HUGE_PAGE, 0);
            }
            Pages::BaseInsteadOfHuge(reason) => {
                assert!(reason.contains("nr_hugepages"), "{reason}")
            }
            Pages::Base => panic!("huge pages were asked for and not spoken of"),
        }
    }

    #[test]
    fn a_buffer_outlives_its_region() {
        let mut region = Region::anonymous(4096).unwrap();
        let mut buffer = region.take(4096).unwrap();
        drop(region);
        buffer.fill(7);
        assert_eq!(buffer[4095], 7);
    }

    #[test]
    fn only_neighbours_join() {
        let mut region = Region::anonymous(4096).unwrap();
        let mut first = region.take(1024).unwrap();
        let other = region.take(64).unwrap();
        let mut head = first.split_to(512);
        let refused = head.join(other).unwrap_err();
        assert_eq!(refused.len(), 64);
        head.join(first).unwrap();
        assert_eq!(head.len(), 1024);
    }

    proptest! {
        #[test]
        fn buffers_never_overlap(lens in prop::collection::vec(0usize..3000, 1..40)) {
            let mut region = Region::anonymous(16384).unwrap();
            let mut taken: Vec<Buffer> = lens.iter().map_while(|len| region.take(*len)).collect();
            for (mark, buffer) in taken.iter_mut().enumerate() {
                buffer.fill(mark as u8 + 1);
            }
            for (mark, buffer) in taken.iter().enumerate() {
                prop_assert!(buffer.iter().all(|byte| *byte == mark as u8 + 1));
            }
        }
    }
}
