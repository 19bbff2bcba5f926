//! Batch commands: one command stays and brings the tags of requests; one returns all results of a turn.
//!
//! Minimum kernel: 7.0 (`UBLK_F_BATCH_IO`), tried on 7.2. Capability: CAP_SYS_ADMIN. The driver registers a
//! request's buffer with our ring, under its tag, before it reports the request. Return signal: the commit.
//!
//! Contracts:
//! - results that the driver has not read yet are on loan to it, and others are gathered in a second array;
//! - if the driver finds no buffer for tags, it keeps the tags, and the command that brings them ends; it
//!   is submitted again;
//! - memory that the driver may still use is never freed.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicU16, Ordering};

use handoff_sys::sqe;
use handoff_sys::ublk::{self, BatchCommand, BatchElement};
use io_uring::types::{BufRingEntry, Fixed};
use io_uring::{cqueue, opcode, squeue};

use super::user_loop::Carrier;
use crate::queue::{PAGE, Pages, Queue};

/// The most tags that the driver brings at a time.
const TAGS: usize = 128;
const TAG_BYTES: usize = size_of::<u16>();
/// The most buffers for tags, a power of two. With one for each request, the driver never lacks one. Then the
/// command that brings tags, which takes memory, is not submitted again.
const BUFFERS: u16 = 128;
const GROUP: u16 = 0;

// Our commands, by the numbers of their completions.
const PREPARE: u32 = 0;
const FETCH: u32 = 1;
const COMMIT: u32 = 2;

/// Commands that may be queued beside the pieces of requests.
pub(super) const COMMANDS: u32 = 2;

/// Bytes of memory for the commands of a queue.
pub(super) fn memory(depth: u16) -> u64 {
    let buffers = usize::from(buffers(depth.into())) * TAGS * TAG_BYTES;
    (PAGE + buffers + 2 * usize::from(depth) * size_of::<BatchElement>()) as u64
}

fn buffers(depth: u32) -> u16 {
    // At least a page of buffers.
    depth.next_power_of_two().clamp(16, BUFFERS.into()) as u16
}

pub(super) struct Batch {
    /// `None` before the beginning.
    tags: Option<TagBuffers>,
    /// Results since the last commit.
    gathered: Vec<BatchElement>,
    /// Results that a command under way refers to.
    on_loan: Option<Vec<BatchElement>>,
    /// The array that changes places with `gathered`.
    spare: Vec<BatchElement>,
    stopped: bool,
}

impl Batch {
    pub(super) fn new(depth: u32) -> Self {
        // Written, so that they have their pages.
        let room = || {
            let mut room =
                vec![BatchElement { tag: u16::MAX, buf_index: 0, result: 0 }; depth as usize];
            room.clear();
            room
        };
        Self { tags: None, gathered: room(), on_loan: None, spare: room(), stopped: false }
    }

    /// Lends the gathered results to a command.
    fn lend(&mut self, queue: &mut Queue, number: u32, command: u32) {
        let elements = mem::replace(&mut self.gathered, mem::take(&mut self.spare));
        let header = BatchCommand {
            elements: elements.len() as u16,
            element_bytes: size_of::<BatchElement>() as u8,
            ..header(queue)
        };
        let entry = opcode::UringCmd16::new(Fixed(0), number)
            .addr(Some(elements.as_ptr() as u64))
            .cmd(header.to_entry_bytes())
            .build();
        queue.push(&entry.user_data(command.into()));
        self.on_loan = Some(elements);
    }

    /// The command is over: takes back its results, and checks that all were taken.
    fn take_back(&mut self, result: i32, expected: impl FnOnce(usize) -> usize) -> io::Result<()> {
        let mut elements = self.on_loan.take().expect("lent to this command");
        match usize::try_from(result) {
            Ok(taken) if taken == expected(elements.len()) => {}
            Ok(taken) => return Err(io::Error::other(format!("only {taken} bytes were taken"))),
            Err(_) => return Err(io::Error::from_raw_os_error(-result)),
        }
        elements.clear();
        self.spare = elements;
        Ok(())
    }
}

/// The common beginning of all commands of a queue.
fn header(queue: &Queue) -> BatchCommand {
    BatchCommand { queue_id: queue.config.queue as u16, ..BatchCommand::default() }
}

/// Asks for tags, as long as that succeeds.
fn fetch(queue: &mut Queue) {
    let header = BatchCommand { element_bytes: TAG_BYTES as u8, ..header(queue) };
    let mut entry = opcode::UringCmd16::new(Fixed(0), ublk::U_IO_FETCH_IO_CMDS)
        .cmd(header.to_entry_bytes())
        .build()
        .flags(squeue::Flags::BUFFER_SELECT)
        .user_data(FETCH.into());
    sqe::set_buf_index(&mut entry, GROUP);
    sqe::set_command_flags(&mut entry, sqe::URING_CMD_MULTISHOT);
    queue.push(&entry);
}

impl Carrier for Batch {
    fn begin(&mut self, queue: &mut Queue) -> io::Result<()> {
        self.tags = Some(TagBuffers::register(queue)?);
        let element = |tag| BatchElement { tag, buf_index: tag, result: 0 };
        self.gathered.extend((0..queue.config.depth as u16).map(element));
        self.lend(queue, ublk::U_IO_PREP_IO_CMDS, PREPARE);
        let result = loop {
            queue.enter()?;
            if let Some(completion) = queue.ring.completion().next() {
                break completion.result();
            }
        };
        self.take_back(result, |_| 0)?;
        fetch(queue);
        queue.ring.submit()?;
        Ok(())
    }

    fn completed(
        &mut self,
        queue: &mut Queue,
        command: u32,
        completion: &cqueue::Entry,
        arrived: &mut Vec<u32>,
    ) -> io::Result<bool> {
        let (result, flags) = (completion.result(), completion.flags());
        if command == COMMIT {
            self.take_back(result, |elements| elements * size_of::<BatchElement>())?;
            return Ok(false);
        }
        if let (Ok(bytes), Some(buffer)) = (usize::try_from(result), cqueue::buffer_select(flags)) {
            self.tags.as_mut().expect("there since the beginning").take(buffer, bytes, arrived);
        }
        if !cqueue::more(flags) {
            match -result {
                libc::ENODEV => {
                    queue.ring.submitter().unregister_buf_ring(GROUP)?;
                    self.stopped = true;
                }
                ..=0 | libc::ENOBUFS => fetch(queue),
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
        Ok(self.stopped)
    }

    fn answer(&mut self, _queue: &mut Queue, tag: u32, result: i32) {
        let tag = tag as u16;
        self.gathered.push(BatchElement { tag, buf_index: tag, result });
    }

    fn turned(&mut self, queue: &mut Queue) {
        if !self.gathered.is_empty() && self.on_loan.is_none() {
            self.lend(queue, ublk::U_IO_COMMIT_IO_CMDS, COMMIT);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The ring is still open, and requests on it are not over.
        mem::forget(self.on_loan.take());
        if !self.stopped {
            mem::forget(self.tags.take());
        }
    }
}

/// Memory for tags from the driver: in the first page a ring of free buffers, behind it the buffers.
struct TagBuffers {
    pages: Pages,
    /// A power of two.
    count: u16,
    tail: u16,
}

const _: () = assert!(BUFFERS.is_power_of_two());
const _: () = assert!(BUFFERS as usize * size_of::<BufRingEntry>() <= PAGE);

impl TagBuffers {
    fn register(queue: &Queue) -> io::Result<Self> {
        let count = buffers(queue.config.depth);
        let pages = Pages::anonymous(PAGE + usize::from(count) * TAGS * TAG_BYTES)?;
        let mut buffers = Self { pages, count, tail: 0 };
        let ring = buffers.pages.start().as_ptr() as u64;
        // SAFETY: whole pages of ours, which stay mapped until this is undone, or for good.
        unsafe { queue.ring.submitter().register_buf_ring_with_flags(ring, count, GROUP, 0)? };
        (0..count).for_each(|buffer| buffers.supply(buffer));
        Ok(buffers)
    }

    fn buffer(&self, buffer: u16) -> *mut u16 {
        // SAFETY: the places of all buffers are behind the first page, and inside of the mapping.
        unsafe {
            self.pages.start().as_ptr().add(PAGE).cast::<u16>().add(TAGS * usize::from(buffer))
        }
    }

    /// Lends a buffer to the driver.
    fn supply(&mut self, buffer: u16) {
        let ring = self.pages.start().as_ptr().cast::<BufRingEntry>();
        // SAFETY: the masked index is that of an entry in the first page. Only this thread writes
        // entries, and the kernel reads none at or past the tail; the tail, in the first entry, is
        // left alone by the setters.
        let entry = unsafe { &mut *ring.add(usize::from(self.tail & (self.count - 1))) };
        entry.set_addr(self.buffer(buffer) as u64);
        entry.set_len((TAGS * TAG_BYTES) as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `ring` is the first entry; its tail is aligned and written by this thread only.
        let published = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(ring).cast_mut()) };
        published.store(self.tail, Ordering::Release);
    }

    /// Reads the tags in a returned buffer, and lends it again.
    fn take(&mut self, buffer: u16, bytes: usize, tags: &mut Vec<u32>) {
        assert!(buffer < self.count && bytes <= TAGS * TAG_BYTES, "within what was lent");
        for index in 0..bytes / TAG_BYTES {
            // SAFETY: inside of the buffer, by the assertion, which the kernel has written before it
            // completed and does not write before it is lent anew.
            tags.push(unsafe { self.buffer(buffer).add(index).read() }.into());
        }
        self.supply(buffer);
    }
}
