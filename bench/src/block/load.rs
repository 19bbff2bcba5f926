//! Random requests to a block device: at most `depth` at a time, and at most `rate` bytes a second if limited.

use std::{
    fs::{File, OpenOptions},
    io, mem,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::Path,
    time::{Duration, Instant},
};

use handoff::{Buffer, Region};
use io_uring::{IoUring, opcode, squeue, types};

use super::Job;
use crate::measure::Slot;

pub(super) struct Load {
    /// The ring closes before its memory goes.
    ring: IoUring,
    file: File,
    /// The memory of each request.
    pieces: Vec<Buffer>,
    job: Job,
    places: u64,
    random: u64,
}

impl Load {
    pub(super) fn new(device: &Path, job: Job) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(job.writes).custom_flags(libc::O_DIRECT);
        let file = options.open(device)?;
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        let bytes = job.bytes as usize;
        let memory = Region::anonymous(bytes * job.depth as usize).map_err(io::Error::other);
        let pieces = memory?.chunks(bytes);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(job.depth.next_power_of_two())?;
        let places = size / u64::from(job.bytes);
        Ok(Self { ring, file, pieces, job, places, random: 0x2545_f491_4f6c_dd1d })
    }

    /// Sends requests until the slot is over. Returns how many were answered.
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

    /// Submits queued requests and waits for an answer; with a `limit`, at most for that time.
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
                // A ring that failed may still have requests under way.
                mem::forget(mem::take(&mut self.pieces));
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
        let buffer = self.pieces[index as usize].as_mut_ptr();
        let fd = types::Fd(self.file.as_raw_fd());
        let entry: squeue::Entry = match self.job.writes {
            true => opcode::Write::new(fd, buffer, self.job.bytes).offset(offset).build(),
            false => opcode::Read::new(fd, buffer, self.job.bytes).offset(offset).build(),
        };
        // SAFETY: the buffer has room for the request's bytes, and is this request's alone until its answer: `run`
        // waits for the answer, or leaks the memory.
        unsafe { self.ring.submission().push(&entry.user_data(index.into())) }
            .expect("room for the depth");
    }

    /// Reads once, to see whether the device answers at all. A job that writes does not read.
    pub(super) fn try_out(&mut self) -> io::Result<()> {
        if self.job.writes {
            return Ok(());
        }
        self.file.read_exact_at(&mut self.pieces[0], 0)
    }
}
