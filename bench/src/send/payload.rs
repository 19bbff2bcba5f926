//! The memory that the baselines send from.

use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: u64 = 4_096;
const HUGE_PAGE: usize = 2 << 20;

/// The size of the memory's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    /// Base pages of 4 KiB.
    Small,
    /// Huge pages of 2 MiB: from the kernel's pool, otherwise transparent ones.
    Huge,
}

/// Messages side by side that are sent in turns. Each begins on a page.
#[derive(Debug)]
pub(super) struct Payload {
    address: *mut u8,
    mapped: usize,
    bytes: usize,
    stride: usize,
    messages: u64,
}

impl Payload {
    /// Maps, fills and touches as many messages of `bytes` as fit into `working_set`, at least one.
    ///
    /// # Errors
    ///
    /// The kernel's error if there is no memory, or none of that kind.
    pub(super) fn new(bytes: u64, working_set: u64, pages: Pages) -> io::Result<Self> {
        let stride = bytes.next_multiple_of(PAGE);
        let messages = (working_set / stride).max(1);
        let too_large = |_| io::Error::from_raw_os_error(libc::ENOMEM);
        let len = usize::try_from(stride * messages).map_err(too_large)?;
        let (address, mapped) = match pages {
            Pages::Small => map_small(len)?,
            Pages::Huge => map_huge(len.next_multiple_of(HUGE_PAGE))?,
        };
        Ok(Self { address, mapped, bytes: bytes as usize, stride: stride as usize, messages })
    }

    /// The message of this number; after the last message the first one follows again.
    pub(super) fn message(&self, number: u64) -> (*const libc::c_void, usize) {
        let at = (number % self.messages) as usize * self.stride;
        // SAFETY: all strides lie within the mapping.
        (unsafe { self.address.add(at) }.cast(), self.bytes)
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone. The kernel holds pages that it still sends. A failure would
        // leave the mapping as it is.
        let _ = unsafe { munmap(self.address.cast(), self.mapped) };
    }
}

fn map(len: usize, flags: MapFlags) -> io::Result<*mut u8> {
    // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
    let address = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | flags,
        )
    }?;
    Ok(address.cast())
}

fn fill(address: *mut u8, len: usize) {
    // SAFETY: the mapping is writable, `len` bytes long and nobody else's. Writing gives every page memory of its
    // own, instead of the kernel's zero page.
    unsafe { std::ptr::write_bytes(address, 0x5a, len) };
}

fn map_small(len: usize) -> io::Result<(*mut u8, usize)> {
    let address = map(len, MapFlags::empty())?;
    // SAFETY: advice on our own mapping. A kernel without transparent huge pages refuses, and the pages are
    // small anyway.
    let _ = unsafe { madvise(address.cast(), len, Advice::LinuxNoHugepage) };
    fill(address, len);
    Ok((address, len))
}

fn map_huge(len: usize) -> io::Result<(*mut u8, usize)> {
    if let Ok(address) = map(len, MapFlags::HUGETLB | MapFlags::HUGE_2MB) {
        fill(address, len);
        return Ok((address, len));
    }
    // The pool is empty. Transparent huge pages need an aligned range, so map more and unmap the rest.
    let start = map(len + HUGE_PAGE, MapFlags::empty())?;
    let before = start.align_offset(HUGE_PAGE);
    // SAFETY: both ends lie within the new mapping, and nothing uses them.
    let address = unsafe {
        let address = start.add(before);
        if before > 0 {
            munmap(start.cast(), before)?;
        }
        munmap(address.add(len).cast(), HUGE_PAGE - before)?;
        address
    };
    fill(address, len);
    // SAFETY: the call changes what backs a mapping of ours, not its content.
    if unsafe { libc::madvise(address.cast(), len, libc::MADV_COLLAPSE) } < 0 {
        let error = io::Error::last_os_error();
        // SAFETY: the mapping is ours, and the address goes no further.
        let _ = unsafe { munmap(address.cast(), len) };
        return Err(io::Error::other(format!(
            "no huge pages: vm.nr_hugepages leaves none and transparent ones were refused ({error})"
        )));
    }
    Ok((address, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_turns_within_the_working_set() {
        let payload = Payload::new(5_000, 32_768, Pages::Small).unwrap();
        assert_eq!(payload.messages, 4);
        let at = |number| payload.message(number).0.addr();
        assert_eq!(at(1) - at(0), 8_192);
        assert_eq!(at(4), at(0));
        assert_eq!(payload.message(3).1, 5_000);
    }

    #[test]
    fn a_small_working_set_still_holds_one_message() {
        let payload = Payload::new(65_435, 1_024, Pages::Small).unwrap();
        assert_eq!(payload.messages, 1);
    }

    #[test]
    fn huge_pages_are_huge_or_refused_with_a_reason() {
        match Payload::new(65_435, 65_536, Pages::Huge) {
            Ok(payload) => assert_eq!(payload.address.addr() % HUGE_PAGE, 0),
            Err(error) => assert!(error.to_string().contains("huge"), "{error}"),
        }
    }
}
