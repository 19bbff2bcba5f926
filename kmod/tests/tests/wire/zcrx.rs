//! A bare receiver with io_uring's zero-copy receive, only what a test of the NIC needs.
//!
//! Kernel interface: IORING_REGISTER_ZCRX_IFQ and IORING_OP_RECV_ZC; the statistics Linux 7.2.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use io_uring::types::{
    Fd, IORING_ZCRX_AREA_MASK, io_uring_region_desc, io_uring_zcrx_area_reg, io_uring_zcrx_ifq_reg,
    io_uring_zcrx_rqe,
};
use io_uring::{IoUring, cqueue, opcode, squeue};

const PAGE: usize = 4_096;
/// Entries of the refill queue.
const ENTRIES: u32 = 4_096;
/// `IORING_MEM_REGION_TYPE_USER`.
const USER_MEMORY: u32 = 1;
/// `ZCRX_EVENT_DESC_FLAG_STATS`.
const STATISTICS: u32 = 1;

/// `struct zcrx_event_desc`.
#[repr(C)]
#[derive(Default)]
struct EventDescription {
    user_data: u64,
    type_mask: u32,
    flags: u32,
    stats_offset: u64,
    reserved: [u64; 9],
}

/// Anonymous memory of our own.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize, pages: libc::c_int) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | pages;
        // SAFETY: a new mapping touches no memory that anybody has.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: NonNull::new(start.cast()).expect("never mapped at zero"), bytes })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes);
        // SAFETY: inside the mapping, by the assertion.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and whoever borrowed from it has borrowed us.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A ring that an rx queue is bound to.
pub(crate) struct Receiver {
    // Dropped before the memory that it was given.
    ring: IoUring<squeue::Entry, cqueue::Entry32>,
    area: Memory,
    queue: Memory,
    registration: io_uring_zcrx_ifq_reg,
    token: u64,
    statistics: usize,
    tail: u32,
}

impl Receiver {
    /// Binds the rx queue of the interface with this index; the area is `chunks` of `chunk` bytes,
    /// in huge pages if these are more than a page.
    pub(crate) fn bind(
        interface: u32,
        rx_queue: u32,
        chunks: usize,
        chunk: u32,
    ) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(ENTRIES)
            .build(8)?;
        // A chunk lies in one piece.
        let pages = if chunk as usize > PAGE { libc::MAP_HUGETLB } else { 0 };
        let area = Memory::new(chunks * chunk as usize, pages)?;
        // Head and tail, the entries, and a page for the statistics.
        let statistics = PAGE + ENTRIES as usize * size_of::<io_uring_zcrx_rqe>();
        let queue = Memory::new(statistics + PAGE, 0)?;

        let mut region = io_uring_region_desc {
            user_addr: queue.start.as_ptr() as u64,
            size: queue.bytes as u64,
            flags: USER_MEMORY,
            ..Default::default()
        };
        let mut area_registration = io_uring_zcrx_area_reg {
            addr: area.start.as_ptr() as u64,
            len: area.bytes as u64,
            ..Default::default()
        };
        let events = EventDescription {
            flags: STATISTICS,
            stats_offset: statistics as u64,
            ..Default::default()
        };
        let registration = io_uring_zcrx_ifq_reg {
            if_idx: interface,
            if_rxq: rx_queue,
            rq_entries: ENTRIES,
            area_ptr: &raw mut area_registration as u64,
            region_ptr: &raw mut region as u64,
            // Since 7.2: rx_buf_len, and event_desc.
            __resv2: chunk,
            __resv: [&raw const events as u64, 0, 0],
            ..Default::default()
        };
        ring.submitter().register_ifq(&registration)?;
        let token = area_registration.rq_area_token;
        Ok(Self { ring, area, queue, registration, token, statistics, tail: 0 })
    }

    /// Receives until the end of the stream; `each` sees the bytes where the NIC has put them.
    pub(crate) fn receive(
        &mut self,
        socket: &impl AsRawFd,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.arm(socket)?;
        loop {
            self.ring.submit_and_wait(1)?;
            let arrived: Vec<(i32, u32, u64)> = self
                .ring
                .completion()
                .map(|entry| (entry.result(), entry.flags(), entry.big_cqe()[0]))
                .collect();
            for (result, flags, place) in arrived {
                if cqueue::more(flags) && result >= 0 {
                    let (offset, length) = (place & !IORING_ZCRX_AREA_MASK, result as usize);
                    assert!(offset as usize + length <= self.area.bytes);
                    // SAFETY: inside the area, and until it is given back below nobody writes to
                    // this part of it.
                    let bytes = unsafe {
                        std::slice::from_raw_parts(self.area.at(offset as usize), length)
                    };
                    each(bytes);
                    self.give_back(offset, length);
                } else if result == 0 {
                    return Ok(());
                } else if result == -libc::ENOSPC {
                    self.arm(socket)?;
                } else {
                    return Err(io::Error::from_raw_os_error(-result));
                }
            }
        }
    }

    /// What the kernel has copied: spans, bytes.
    pub(crate) fn copied(&self) -> (u64, u64) {
        let at = |offset| {
            // SAFETY: the kernel was told to count here, in words on their boundary.
            unsafe { &*self.queue.at(self.statistics + offset).cast::<AtomicU64>() }
                .load(Ordering::Relaxed)
        };
        (at(0), at(8))
    }

    fn arm(&mut self, socket: &impl AsRawFd) -> io::Result<()> {
        let entry =
            opcode::RecvZc::new(Fd(socket.as_raw_fd()), 0).ifq(self.registration.zcrx_id).build();
        // SAFETY: the request refers to the socket alone, which the kernel holds.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    fn give_back(&mut self, offset: u64, length: usize) {
        let index = (self.tail & (ENTRIES - 1)) as usize * size_of::<io_uring_zcrx_rqe>();
        let entry = self.queue.at(self.registration.offsets.rqes as usize + index);
        let value = io_uring_zcrx_rqe { off: offset | self.token, len: length as u32, __pad: 0 };
        // SAFETY: the entry is inside the queue, and the kernel reads it after the tail has moved.
        unsafe { entry.cast::<io_uring_zcrx_rqe>().write(value) };
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the kernel shares the tail with us as a word on its boundary.
        let tail = unsafe { AtomicU32::from_ptr(self.tail_word()) };
        tail.store(self.tail, Ordering::Release);
    }

    fn tail_word(&self) -> *mut u32 {
        self.queue.at(self.registration.offsets.tail as usize).cast()
    }
}
