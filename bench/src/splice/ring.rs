//! A ring that runs one batch of requests after the other, each in one system call.
//!
//! Minimum kernel: 6.6 (no array beside the submission queue). The ring uses everything that saves instructions
//! and that every program can use: deferred completions, one issuer, and the registration of its descriptor and
//! of all files.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
};

use handoff_sys::ring_fd::RingFd;
use io_uring::{EnterFlags, IoUring, squeue::Entry};

pub(super) struct Ring {
    /// The ring's registered descriptor is released before the ring closes.
    place: RingFd,
    ring: IoUring,
}

impl Ring {
    /// Makes a ring with room for a batch of `requests` requests, with these files at their places, and with
    /// `slots` empty slots for buffers.
    ///
    /// # Errors
    ///
    /// One line with the kernel's error.
    pub(super) fn new(
        requests: usize,
        files: &[BorrowedFd<'_>],
        slots: u16,
    ) -> Result<Self, String> {
        let files: Vec<i32> = files.iter().map(|file| file.as_raw_fd()).collect();
        let make = || -> io::Result<Self> {
            let ring = IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_no_sqarray()
                .build(requests.next_power_of_two() as u32)?;
            ring.submitter().register_files(&files)?;
            if slots > 0 {
                ring.submitter().register_buffers_sparse(slots.into())?;
            }
            // SAFETY: the ring stays open for longer than `place` is kept.
            let place = RingFd::register(unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })?;
            Ok(Self { place, ring })
        };
        make().map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => "this kernel has no such ring: it needs Linux 6.6".to_owned(),
            _ => format!("no ring: {error}"),
        })
    }

    /// Runs requests that refer to no memory of this process, and waits for `answers` completions. The result
    /// of each must be `bytes`. With `at_once` they are expected without waiting.
    ///
    /// # Errors
    ///
    /// One line with the first different result, or with the kernel's error. Requests may then be under way: do
    /// not use the ring any more.
    pub(super) fn run(
        &mut self,
        batch: &[Entry],
        answers: usize,
        bytes: u32,
        at_once: bool,
    ) -> Result<(), String> {
        // SAFETY: the requests refer to files and slots of the ring, and to no memory.
        unsafe { self.ring.submission().push_multiple(batch) }
            .map_err(|_| "a batch is larger than its ring".to_owned())?;
        let (mut unsubmitted, mut missing) = (batch.len(), answers);
        // Requests done at once have completed when the call returns, so the call need not wait.
        let mut flags = if at_once { 0 } else { EnterFlags::GETEVENTS.bits() };
        while unsubmitted > 0 || missing > 0 {
            // SAFETY: as above, and the call has no argument in memory.
            let entered = unsafe {
                self.place.enter(unsubmitted as u32, missing as u32, flags, ptr::null(), 0)
            };
            match entered {
                Ok(taken) => unsubmitted -= taken,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("io_uring_enter: {error}")),
            }
            for answer in self.ring.completion() {
                match answer.result() {
                    result if result == bytes.cast_signed() => missing -= 1,
                    error @ ..0 => {
                        let error = io::Error::from_raw_os_error(-error);
                        return Err(format!("a request failed: {error}"));
                    }
                    short => return Err(format!("a request ended after {short} bytes")),
                }
            }
            flags = EnterFlags::GETEVENTS.bits();
        }
        Ok(())
    }
}
