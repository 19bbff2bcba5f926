//! A ring's own descriptor, registered with the calling thread, so that entering the kernel needs no
//! look-up. The `io-uring` crate keeps the registration in its short-lived `Submitter`: the next one can
//! neither use it nor undo it.
//!
//! Kernel interface: `IORING_REGISTER_RING_FDS` (Linux 5.18). A thread has 16 places, and a place keeps
//! its ring open until it is released or the thread ends.

use std::{
    ffi::c_void,
    io,
    marker::PhantomData,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
};

use crate::process::Process;

const IORING_REGISTER_RING_FDS: u32 = 20;
const IORING_UNREGISTER_RING_FDS: u32 = 21;
const IORING_ENTER_REGISTERED_RING: u32 = 1 << 4;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
}

const _: () = assert!(size_of::<Update>() == 16);

/// One of the thread's places for rings. Dropping it releases the place; that must happen before the
/// ring's descriptor is closed. A child of fork(2) has no places of its parent, and its copy of this releases none.
#[derive(Debug)]
pub struct RingFd {
    ring: RawFd,
    place: u32,
    made_by: Process,
    this_thread: PhantomData<*const ()>,
}

impl RingFd {
    /// Registers the ring with the calling thread.
    ///
    /// # Errors
    ///
    /// EBUSY if all places of the thread are taken, EINVAL before Linux 5.18.
    pub fn register(ring: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = ring.as_raw_fd();
        let mut update = Update { offset: u32::MAX, reserved: 0, data: ring as u64 };
        // SAFETY: the kernel reads and writes one update, which outlives the call.
        unsafe { register(ring, IORING_REGISTER_RING_FDS, &raw mut update) }?;
        let (place, made_by) = (update.offset, Process::this());
        Ok(Self { ring, place, made_by, this_thread: PhantomData })
    }

    /// `io_uring_enter(2)` for the ring at this place; `flags` are `IORING_ENTER_*`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    ///
    /// # Safety
    ///
    /// The submission queue holds only entries that may be submitted, and `argument` is what `flags`
    /// say, `len` bytes long, and valid during the call.
    pub unsafe fn enter(
        &self,
        submit: u32,
        want: u32,
        flags: u32,
        argument: *const c_void,
        len: usize,
    ) -> io::Result<usize> {
        // SAFETY: passed on to the caller.
        let taken = unsafe {
            let flags = flags | IORING_ENTER_REGISTERED_RING;
            libc::syscall(libc::SYS_io_uring_enter, self.place, submit, want, flags, argument, len)
        };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for RingFd {
    fn drop(&mut self) {
        if !self.made_by.is_this() {
            return;
        }
        let mut update = Update { offset: self.place, reserved: 0, data: 0 };
        // SAFETY: as in `register`. It can fail only if the descriptor was closed against the rule.
        let _ = unsafe { register(self.ring, IORING_UNREGISTER_RING_FDS, &raw mut update) };
    }
}

unsafe fn register(ring: RawFd, opcode: u32, update: *mut Update) -> io::Result<()> {
    // SAFETY: passed on to the caller.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, opcode, update, 1) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IORING_ENTER_GETEVENTS: u32 = 1;

    #[test]
    fn a_place_is_used_and_given_up() {
        let ring = match io_uring::IoUring::new(4) {
            Ok(ring) => ring,
            Err(error) => {
                let line = format!("\nHANDOFF-SKIP ring_fd::a_place_is_used: no ring: {error}\n");
                // Past the capture of the test harness.
                return io::Write::write_all(&mut io::stdout(), line.as_bytes()).unwrap();
            }
        };
        // SAFETY: the ring stays open for longer.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let mut places = Vec::new();
        while let Ok(place) = RingFd::register(fd) {
            // SAFETY: nothing is queued.
            let entered = unsafe { place.enter(0, 0, IORING_ENTER_GETEVENTS, std::ptr::null(), 0) };
            assert_eq!(entered.unwrap(), 0);
            places.push(place);
        }
        assert!(!places.is_empty());
        let taken = places.len();
        drop(places);
        let again: Vec<_> = (0..taken).map(|_| RingFd::register(fd).unwrap()).collect();
        assert_eq!(again.len(), taken);
    }
}
