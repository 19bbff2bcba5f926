//! One queue of a device: its ring, the driver's descriptions of its requests, and its engine's memory.
//!
//! Contracts:
//! - one thread makes and uses a queue, as the driver and the ring require;
//! - the submission queue has room for all pieces of all requests and the engine's commands, so nothing
//!   ever waits for room; the completion queue has twice that;
//! - the ring closes before the memory goes that the kernel may still use; our buffers of unanswered
//!   requests are never freed.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use handoff_sys::ring_fd::RingFd;
use handoff_sys::ublk;
use io_uring::{EnterFlags, IoUring, squeue};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::life::{Config, Descriptor, Entries, Life};
use crate::ring::{self, Shape};
use crate::spec::Engine;
use crate::state::Mapping;

pub(crate) const PAGE: usize = 4096;

/// What queues are made of.
pub(crate) struct Parts<'a> {
    pub(crate) queue: u16,
    pub(crate) shape: Shape,
    /// From [`ring::make`], of this shape.
    pub(crate) ring: IoUring,
    /// The device's char device, then its backings.
    pub(crate) files: &'a [OwnedFd],
    pub(crate) region: Mapping,
}

pub(crate) struct Queue {
    ring_fd: Option<RingFd>,
    pub(crate) ring: IoUring,
    pub(crate) config: Config,
    pub(crate) life: Life,
    pub(crate) region: Mapping,
    descriptors: Pages,
    buffers: Option<Pages>,
    /// Commands that came back for good.
    gone: u32,
}

impl Queue {
    pub(crate) fn new(parts: Parts<'_>) -> io::Result<Self> {
        let Shape { engine, depth, max_request, .. } = parts.shape;
        let tags = ring::tags(depth);
        let ring = parts.ring;
        let files: Vec<RawFd> = parts.files.iter().map(|file| file.as_raw_fd()).collect();
        ring.submitter().register_files_update(0, &files)?;
        let buffer_size = (max_request as usize).next_multiple_of(PAGE);
        let buffers = if engine.lends() {
            None
        } else {
            Some(Pages::anonymous(buffer_size * usize::from(depth))?)
        };
        // SAFETY: the descriptor is the ring's, which is open.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let ring_fd = RingFd::register(fd).ok();
        let descriptors = Pages::of_requests(&parts.files[0], parts.queue, depth)?;
        let (sq, cq) = (ring.params().sq_entries(), ring.params().cq_entries());
        let config = Config {
            queue: parts.queue.into(),
            depth: depth.into(),
            tag_mask: tags - 1,
            sq_mask: sq - 1,
            cq_mask: cq - 1,
            // Before the completions lie the queues' heads and tails; the kernel has whole pages.
            rings_size: (cq * 16 + 64).next_multiple_of(PAGE as u32),
            entries_size: sq * size_of::<squeue::Entry>() as u32,
            region_size: parts.region.len() as u32,
            descriptors: descriptors.address.as_ptr() as u64,
            buffers: buffers.as_ref().map_or(0, |pages| pages.address.as_ptr() as u64),
            buffer_size: buffer_size as u64,
        };
        // SAFETY: the region is made for this depth, and goes with this queue.
        let life = unsafe { Life::new(config, parts.region.as_ptr()) };
        Ok(Self {
            ring_fd,
            ring,
            config,
            life,
            region: parts.region,
            descriptors,
            buffers,
            gone: 0,
        })
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
        // SAFETY: entries are made by `Life`, and point to lent buffers, or to ours, which are freed only
        // after all requests are answered; or by `Batch`, which keeps what they point to until they have
        // completed.
        unsafe { self.ring.submission().push(entry) }.expect("room for all pieces of all requests");
    }

    pub(crate) fn push_all(&mut self, entries: &Entries) {
        for entry in entries.as_slice() {
            self.push(entry);
        }
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
            self.life.command(ublk::U_IO_FETCH_REQ, tag, 0, &mut entries);
            self.push_all(&entries);
        }
        let submitted = self.ring.submit()?;
        if submitted < self.config.depth as usize {
            return Err(io::Error::other(format!("only {submitted} commands were taken")));
        }
        Ok(())
    }

    /// A tag's command has come back for good. `Ok(true)` when all have.
    pub(crate) fn is_gone(&mut self, result: i32) -> io::Result<bool> {
        self.gone += 1;
        if result != -libc::ENODEV {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(self.gone == self.config.depth)
    }

    /// All commands have come back, as the loop in the kernel reports.
    pub(crate) fn all_gone(&mut self) {
        self.gone = self.config.depth;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The kernel may still read or write an unanswered request.
        if self.gone < self.config.depth {
            std::mem::forget(self.buffers.take());
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

    /// The driver's descriptions of a queue's requests.
    fn of_requests(device: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let room =
            |depth: u16| (usize::from(depth) * ublk::DESCRIPTOR_BYTES).next_multiple_of(PAGE);
        let offset = usize::from(queue) * room(ublk::MAX_QUEUE_DEPTH);
        let (len, flags) = (room(depth), MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, flags, device, offset as u64)? };
        Ok(Self { address: NonNull::new(address.cast()).expect("not null"), len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and everybody who used it held this.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
    }
}
