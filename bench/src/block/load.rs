//! Random requests to a block device: so many at a time, and at most so many a second, if limited.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::Path,
    ptr,
    time::{Duration, Instant},
};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::Job;
use crate::measure::Slot;

pub(super) struct Load {
    /// Closes before the memory goes.
    ring: IoUring,
    file: File,
    memory: Memory,
    job: Job,
    places: u64,
    random: u64,
}

/// Pages for the requests.
struct Memory {
    address: *mut u8,
    len: usize,
    /// A ring that failed may still have requests under way: the memory then stays mapped.
    lost: bool,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.lost {
            // SAFETY: the mapping is ours, and no request is under way: a run waits for all, or leaks the
            // memory.
            let _ = unsafe { munmap(self.address.cast(), self.len) };
        }
    }
}

impl Load {
    pub(super) fn new(device: &Path, job: Job) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(job.writes).custom_flags(libc::O_DIRECT);
        let file = options.open(device)?;
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        let len = job.bytes as usize * job.depth as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                protection,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        let memory = Memory { address: address.cast(), len, lost: false };
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(job.depth.next_power_of_two())?;
        let places = size / u64::from(job.bytes);
        Ok(Self { ring, file, memory, job, places, random: 0x2545_f491_4f6c_dd1d })
    }

    /// Sends requests until the slot is over; returns how many were answered.
    pub(super) fn run(&mut self, slot: &Slot<'_>) -> io::Result<u64> {
        let begin = Instant::now();
        let mut free: Vec<u32> = (0..self.job.depth).collect();
        let (mut begun, mut done) = (0, 0);
        let mut failure = None;
        loop {
            let over = slot.is_over() || failure.is_some();
            let wait = self.job.due(begun).saturating_sub(begin.elapsed());
            if !over
                && wait.is_zero()
                && let Some(index) = free.pop()
            {
                self.push(index);
                begun += 1;
                continue;
            }
            match (begun == done, over) {
                (true, true) => break,
                (true, false) => std::thread::sleep(wait),
                (false, _) if wait.is_zero() || over => self.wait(None)?,
                (false, _) => self.wait(Some(wait))?,
            }
            while let Some(answer) = self.ring.completion().next() {
                if answer.result() != self.job.bytes.cast_signed() {
                    failure = Some(answer.result());
                }
                free.push(answer.user_data() as u32);
                done += 1;
            }
        }
        match failure {
            None => Ok(done),
            Some(error @ ..0) => Err(io::Error::from_raw_os_error(-error)),
            Some(short) => Err(io::Error::other(format!("a request ended after {short} bytes"))),
        }
    }

    /// Submits queued requests and waits for an answer, at most for the given time.
    fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let waited = match limit {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let limit = types::Timespec::from(limit);
                let arguments = types::SubmitArgs::new().timespec(&limit);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
        };
        match waited {
            Err(error)
                if error.kind() != io::ErrorKind::Interrupted
                    && error.raw_os_error() != Some(libc::ETIME) =>
            {
                self.memory.lost = true;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    fn push(&mut self, index: u32) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let offset = self.random % self.places * u64::from(self.job.bytes);
        // SAFETY: inside of the mapping, which has room for `depth` requests.
        let buffer = unsafe { self.memory.address.add((index * self.job.bytes) as usize) };
        let fd = types::Fd(self.file.as_raw_fd());
        let entry: squeue::Entry = match self.job.writes {
            true => opcode::Write::new(fd, buffer, self.job.bytes).offset(offset).build(),
            false => opcode::Read::new(fd, buffer, self.job.bytes).offset(offset).build(),
        };
        // SAFETY: until its answer the buffer belongs to this request alone; `run` waits for the answer, or
        // leaks the memory.
        unsafe { self.ring.submission().push(&entry.user_data(index.into())) }
            .expect("room for the depth");
    }

    /// Whether the device answers at all.
    pub(super) fn try_out(&self) -> io::Result<()> {
        if self.job.writes {
            return Ok(());
        }
        // SAFETY: the mapping is live, ours, and no request is under way.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(self.memory.address, self.job.bytes as usize) };
        self.file.read_exact_at(memory, 0)
    }
}
