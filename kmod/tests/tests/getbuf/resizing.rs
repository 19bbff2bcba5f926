//! A ring in the program's own memory, whose queues can be resized while requests wait
//! (`IORING_REGISTER_RESIZE_RINGS`, Linux 6.13), which the `io-uring` crate cannot do.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use io_uring::{cqueue, squeue};
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, IoringSetupFlags, io_uring_enter, io_uring_params,
    io_uring_ptr, io_uring_register, io_uring_rsrc_register, io_uring_setup,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::device::{Queues, TIMEOUT};

/// Bytes of each of a ring's two regions: room for [`ENTRIES_MAX`] requests.
const REGION: usize = ENTRIES_MAX as usize * size_of::<squeue::Entry>();
const ENTRIES_MAX: u32 = 256;

/// For a ring's queues, with any number.
pub(crate) fn any_size(number: u64) -> u32 {
    ENTRIES_MAX >> (number % 4)
}

/// Zeroed pages in small pieces, so that the kernel must map them: that mapping goes with the queues, and a
/// later access to them faults.
struct Region(*mut c_void);

impl Region {
    fn new() -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory at a place that the kernel chooses.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), REGION, protection, MapFlags::SHARED) };
        let region = Self(start.expect("memory"));
        // SAFETY: the pages are ours and stay what they are.
        unsafe { madvise(region.0, REGION, Advice::LinuxNoHugepage) }.expect("advises");
        region
    }

    fn address(&self) -> io_uring_ptr {
        io_uring_ptr::from(self.0)
    }

    /// The value at this offset.
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= REGION);
        self.0.wrapping_byte_add(offset).cast()
    }

    fn counter(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: inside the region, aligned, and the kernel too changes it atomically.
        unsafe { AtomicU32::from_ptr(self.at(offset as usize)) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody else refers to it; the kernel has references of its own to pages it uses.
        let _ = unsafe { munmap(self.0, REGION) };
    }
}

pub(crate) struct Resizing {
    // Dropped before the memory that it lies in.
    fd: OwnedFd,
    parameters: io_uring_params,
    queues: Region,
    entries: Region,
}

impl Resizing {
    /// For the thread that makes it.
    pub(crate) fn new(entries: u32) -> Self {
        let (queues, room) = (Region::new(), Region::new());
        let mut parameters = parameters(entries, &queues, &room);
        parameters.flags = IoringSetupFlags::NO_MMAP
            | IoringSetupFlags::NO_SQARRAY
            | IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN;
        // SAFETY: the parameters name memory that is large enough and outlives the ring.
        let fd = unsafe { io_uring_setup(entries, &mut parameters) }.expect("a ring");
        Self { fd, parameters, queues, entries: room }
    }

    fn enter(&self, submit: u32, complete: u32) -> u32 {
        // SAFETY: the tests keep what the requests refer to until they have completed.
        let entered =
            unsafe { io_uring_enter(&self.fd, submit, complete, IoringEnterFlags::GETEVENTS) };
        entered.expect("enters")
    }

    fn completed(&self, limit: usize) -> Vec<cqueue::Entry> {
        let offsets = &self.parameters.cq_off;
        let (head, tail) = (self.queues.counter(offsets.head), self.queues.counter(offsets.tail));
        let end = tail.load(Ordering::Acquire);
        let begin = head.load(Ordering::Relaxed);
        let count = end.wrapping_sub(begin).min(limit as u32);
        let mask = self.parameters.cq_entries - 1;
        let completed = (0..count).map(|index| {
            let place = (begin.wrapping_add(index) & mask) as usize;
            let offset = offsets.cqes as usize + place * size_of::<cqueue::Entry>();
            // SAFETY: the kernel has written it, and does not again before the head has moved.
            unsafe { (*self.queues.at::<cqueue::Entry>(offset)).clone() }
        });
        let completed = completed.collect();
        head.store(begin.wrapping_add(count), Ordering::Release);
        completed
    }
}

fn parameters(entries: u32, queues: &Region, room: &Region) -> io_uring_params {
    assert!(entries.is_power_of_two() && entries <= ENTRIES_MAX);
    let mut parameters = io_uring_params::default();
    parameters.sq_entries = entries;
    parameters.cq_off.user_addr = queues.address();
    parameters.sq_off.user_addr = room.address();
    parameters
}

impl AsRawFd for Resizing {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Queues for Resizing {
    fn make_table(&self, slots: u32) {
        /// `IORING_RSRC_REGISTER_SPARSE`.
        const SPARSE: u32 = 1;
        let mut table = io_uring_rsrc_register::default();
        table.nr = slots;
        table.flags = rustix::io_uring::IoringRsrcFlags::from_bits_retain(SPARSE);
        let size = size_of_val(&table) as u32;
        let operation = IoringRegisterOp::RegisterBuffers2;
        // SAFETY: the structure is read during the call.
        unsafe { io_uring_register(&self.fd, operation, (&raw const table).cast(), size) }
            .expect("a table");
    }

    fn submit(&mut self, entries: &[squeue::Entry]) {
        let tail = self.queues.counter(self.parameters.sq_off.tail);
        let begin = tail.load(Ordering::Relaxed);
        let mask = self.parameters.sq_entries - 1;
        for (index, entry) in entries.iter().enumerate() {
            let place = (begin.wrapping_add(index as u32) & mask) as usize;
            let to = self.entries.at::<squeue::Entry>(place * size_of::<squeue::Entry>());
            // SAFETY: inside the region; the kernel has taken what stood there.
            unsafe { to.write(entry.clone()) };
        }
        let count = entries.len() as u32;
        tail.store(begin.wrapping_add(count), Ordering::Release);
        assert_eq!(self.enter(count, 0), count);
    }

    fn wait(&mut self, count: usize) -> Vec<cqueue::Entry> {
        let begin = Instant::now();
        let mut completed = self.completed(count);
        while completed.len() < count {
            assert!(begin.elapsed() < TIMEOUT, "{count} wanted: {completed:?}");
            std::thread::yield_now();
            self.enter(0, 0);
            completed.extend(self.completed(count - completed.len()));
        }
        completed
    }

    fn resize(&mut self, entries: u32) {
        let (queues, room) = (Region::new(), Region::new());
        let mut parameters = parameters(entries, &queues, &room);
        let operation = IoringRegisterOp::RegisterResizeRings;
        let pointer = (&raw mut parameters).cast_const().cast();
        // SAFETY: the structure is read and written during the call, and names memory that is large
        // enough and outlives the ring.
        unsafe { io_uring_register(&self.fd, operation, pointer, 1) }.expect("resizes");
        self.parameters = parameters;
        self.queues = queues;
        self.entries = room;
    }
}
