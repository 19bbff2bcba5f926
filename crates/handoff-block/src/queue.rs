//! One queue of a device: its ring, the driver's descriptions of its requests, and its engine's memory.
//!
//! Contracts:
//! - one thread makes and uses a queue, as the driver and the ring require;
//! - the submission queue has room for all pieces of all requests and the engine's commands, so nothing
//!   ever waits for room; the completion queue has twice that;
//! - the ring closes before the memory goes that the kernel may still use; our buffers of unanswered
//!   requests are never freed.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use handoff_sys::ring_fd::RingFd;
use handoff_sys::ublk;
use io_uring::{EnterFlags, IoUring, squeue};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::request::{Config, Descriptor, Entries, Requests};
use crate::ring::{self, Shape};
use crate::spec::Engine;
use crate::state::{self, Mapping};

pub(crate) const PAGE: usize = 4096;

/// What a queue has before it has a device.
pub(crate) struct PreparedQueue {
    shape: Shape,
    pub(crate) ring: IoUring,
    /// As it will be, but for buffers of our own.
    pub(crate) config: Config,
    /// Addresses for the driver's descriptions.
    descriptors: Pages,
}

impl PreparedQueue {
    /// With a ring of this shape, from [`ring::make`].
    pub(crate) fn new(queue: u16, shape: Shape, ring: IoUring) -> io::Result<Self> {
        let descriptors = Pages::reserved(usize::from(shape.depth) * ublk::DESCRIPTOR_BYTES)?;
        let (sq, cq) = (ring.params().sq_entries(), ring.params().cq_entries());
        let chunks = shape.chunks();
        let (region_size, chunks_at) = state::region_bytes(shape.depth, chunks);
        let config = Config {
            queue: queue.into(),
            depth: shape.depth.into(),
            tag_mask: ring::tags(shape.depth) - 1,
            sq_mask: sq - 1,
            cq_mask: cq - 1,
            // Before the completions lie the queues' heads and tails; the kernel has whole pages.
            rings_size: (cq * 16 + 64).next_multiple_of(PAGE as u32),
            entries_size: sq * size_of::<squeue::Entry>() as u32,
            region_size: region_size as u32,
            descriptors: descriptors.address.as_ptr() as u64,
            buffers: 0,
            buffer_size: (shape.max_request as usize).next_multiple_of(PAGE) as u64,
            chunks_at: if chunks > 0 { chunks_at as u32 } else { 0 },
            chunk_shift: shape.recorded.map_or(0, |recorded| recorded.chunk_shift),
            chunk_mask: (chunks.next_power_of_two() - 1) as u32,
            clerk: shape.clerk,
        };
        Ok(Self { shape, ring, config, descriptors })
    }
}

pub(crate) struct Queue {
    ring_fd: Option<RingFd>,
    pub(crate) ring: IoUring,
    pub(crate) config: Config,
    pub(crate) requests: Requests,
    pub(crate) region: Mapping,
    descriptors: Pages,
    buffers: Option<Pages>,
    /// Commands that came back for good.
    gone: u32,
}

impl Queue {
    /// With the device's char device and its backings, and the state of this queue of the device. `bell` rings when
    /// the mirror's clerk has answered.
    pub(crate) fn new(
        prepared: PreparedQueue,
        files: &[OwnedFd],
        region: Mapping,
        bell: Option<RawFd>,
    ) -> io::Result<Self> {
        let PreparedQueue { shape, ring, mut config, mut descriptors } = prepared;
        let numbers: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
        ring.submitter().register_files_update(0, &numbers)?;
        let mut buffers = None;
        if !shape.engine.lends() {
            let all = Pages::anonymous(config.buffer_size as usize * usize::from(shape.depth))?;
            config.buffers = all.address.as_ptr() as u64;
            buffers = Some(all);
        }
        // SAFETY: the descriptor is the ring's, which is open.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let ring_fd = RingFd::register(fd).ok();
        descriptors.become_requests(&files[0], config.queue)?;
        assert_eq!(region.len(), config.region_size as usize, "made for this depth");
        // SAFETY: the region is made for this depth, and goes with this queue.
        let requests = unsafe { Requests::new(config, region.as_ptr()) };
        let mut queue =
            Self { ring_fd, ring, config, requests, region, descriptors, buffers, gone: 0 };
        if let Some(bell) = bell {
            queue.ring.submitter().register_files_update(ring::BELL, &[bell])?;
            queue.listen();
        }
        Ok(queue)
    }

    /// Bytes of memory of a queue: its buffers, ring and descriptions.
    pub(crate) fn memory(
        depth: u16,
        max_request: u32,
        engine: Engine,
        commands_beside: u32,
    ) -> u64 {
        let requests = u64::from(depth);
        let buffers = if engine.lends() { 0 } else { requests * u64::from(max_request) };
        let entries = u64::from(ring::entries(depth, commands_beside));
        buffers + entries * 64 + 2 * entries * 16 + requests * 24
    }

    /// Queues an entry.
    pub(crate) fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: entries are made by `Requests`, and point to lent buffers, or to ours, which are freed only
        // after all requests are answered; or by `Batch`, which keeps what they point to until they have
        // completed.
        unsafe { self.ring.submission().push(entry) }.expect("room for all pieces of all requests");
    }

    pub(crate) fn push_all(&mut self, entries: &Entries) {
        for entry in entries.as_slice() {
            self.push(entry);
        }
    }

    /// Listens to the mirror's clerk; the entry goes with the next ones.
    pub(crate) fn listen(&mut self) {
        let mut entries = Entries::new();
        self.requests.listen(&mut entries);
        self.push_all(&entries);
    }

    /// Submits queued entries and waits for a completion, or runs the loop in the kernel.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        let submit = self.ring.submission().len() as u32;
        let flags = EnterFlags::GETEVENTS.bits();
        let entered = match &self.ring_fd {
            // SAFETY: queued entries may be submitted, by `push`; there is no argument.
            Some(place) => unsafe { place.enter(submit, 1, flags, ptr::null(), 0) },
            // SAFETY: as above.
            None => unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(submit, 1, flags, None)
            },
        };
        match entered {
            Ok(_) => Ok(()),
            // Completions to look at first, or short of memory for requests: entries not submitted stay
            // queued.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The driver's description of the request that has arrived with this tag.
    pub(crate) fn descriptor(&self, tag: u32) -> io::Result<Descriptor> {
        if tag >= self.config.depth {
            return Err(io::Error::other(format!("the driver has a request with the tag {tag}")));
        }
        let all = self.descriptors.start().as_ptr().cast::<Descriptor>();
        // SAFETY: inside of the mapping, which has one for each tag below the depth; the driver
        // does not write it until the request is answered.
        Ok(unsafe { ptr::read_volatile(all.add(tag as usize)) })
    }

    /// Submits the first command of every tag.
    pub(crate) fn fetch_all(&mut self) -> io::Result<()> {
        let mut entries = Entries::new();
        for tag in 0..self.config.depth {
            self.requests.command(ublk::U_IO_FETCH_REQ, tag, 0, &mut entries);
            self.push_all(&entries);
        }
        let submitted = self.ring.submit()?;
        if submitted < self.config.depth as usize {
            return Err(io::Error::other(format!("only {submitted} commands were taken")));
        }
        Ok(())
    }

    /// Counts a tag's command that has come back for good. `Ok(true)` when all have.
    pub(crate) fn count_gone(&mut self, result: i32) -> io::Result<bool> {
        self.gone += 1;
        if result != -libc::ENODEV {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(self.gone == self.config.depth)
    }

    /// Notes that all commands have come back, as the loop in the kernel reports.
    pub(crate) fn set_all_gone(&mut self) {
        self.gone = self.config.depth;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The kernel may still read or write an unanswered request.
        if self.gone < self.config.depth {
            mem::forget(self.buffers.take());
        }
    }
}

/// A mapping of whole pages.
pub(crate) struct Pages {
    address: NonNull<u8>,
    len: usize,
}

impl Pages {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.address
    }

    /// All of it is taken now: the first touch of a page when memory is short may wait for memory that
    /// waits for this queue.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address =
            unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE)? };
        let pages = Self { address: NonNull::new(address.cast()).expect("not null"), len };
        // MAP_POPULATE does nothing in a process that locks memory at its first touch.
        // SAFETY: the mapping just made, which stays what it is.
        unsafe { madvise(address, len, Advice::LinuxPopulateWrite)? };
        Ok(pages)
    }

    /// Addresses that nobody else gets.
    fn reserved(len: usize) -> io::Result<Self> {
        let (len, nothing) = (len.next_multiple_of(PAGE), ProtFlags::empty());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), len, nothing, MapFlags::PRIVATE)? };
        Ok(Self { address: NonNull::new(address.cast()).expect("not null"), len })
    }

    /// The driver's descriptions of a queue's requests take the place of reserved pages.
    fn become_requests(&mut self, device: &OwnedFd, queue: u32) -> io::Result<()> {
        let room = usize::from(ublk::MAX_QUEUE_DEPTH) * ublk::DESCRIPTOR_BYTES;
        let offset = queue as usize * room.next_multiple_of(PAGE);
        let flags = MapFlags::SHARED | MapFlags::POPULATE | MapFlags::FIXED;
        let (address, access) = (self.address.as_ptr().cast(), ProtFlags::READ);
        // If that fails, the addresses may be another's.
        let len = mem::take(&mut self.len);
        // SAFETY: in place of our own mapping, which nobody looks at yet.
        unsafe { mmap(address, len, access, flags, device, offset as u64)? };
        self.len = len;
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and everybody who used it held this.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
    }
}
