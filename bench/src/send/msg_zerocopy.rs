//! The baselines with MSG_ZEROCOPY (socket(7), Linux 4.14; UDP from 5.0).
//!
//! Each successful send gets the next number of its socket. The kernel releases the pages in any order and queues
//! ranges of numbers on the socket's error queue. It joins ranges that touch. Each range has a flag that says
//! whether the kernel copied after all.

use std::{
    io, mem,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    rc::Rc,
    time::{Duration, Instant},
};

use handoff_sys::zerocopy::{self, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::{payload::Payload, testbed::Testbed};
use crate::measure::{Engine, Slot, Tally};

/// The number of sends after which the error queue is read at the latest, as in the selftest.
const SENDS_PER_READ: u64 = 32;
/// How long the selftest waits until the socket is writable, or for the last returns.
const TIMEOUT: Duration = Duration::from_millis(500);

/// How a row calls the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loop {
    /// The loop of the kernel's selftest msg_zerocopy: sendmsg without blocking, then a poll for writability
    /// and a look at the clock after every send. It reads the error queue until it is empty when the socket is
    /// not writable or 32 sends have gone out.
    Seed,
    /// A loop with as few calls as possible: send, and one read of the error queue per 32 sends.
    Tuned,
}

pub(super) struct MsgZerocopy {
    socket: OwnedFd,
    payload: Rc<Payload>,
    kind: Loop,
    sent: u64,
    returned: u64,
    copied: u64,
}

impl MsgZerocopy {
    pub(super) fn new(testbed: &Testbed, payload: Rc<Payload>, kind: Loop) -> io::Result<Self> {
        let socket = testbed.connect()?;
        zerocopy::enable(socket.as_fd())?;
        Ok(Self { socket, payload, kind, sent: 0, returned: 0, copied: 0 })
    }

    fn run_seed(&mut self, slot: &Slot<'_>) -> io::Result<u64> {
        let mut unread = 0;
        let mut bytes = 0;
        loop {
            if let Some(sent) = self.sendmsg()? {
                bytes += sent;
                unread += 1;
            }
            if unread >= SENDS_PER_READ {
                self.read_all()?;
                unread = 0;
            }
            while !self.is_ready(PollFlags::OUT, TIMEOUT)? {
                self.read_all()?;
                unread = 0;
            }
            if slot.is_over() {
                return Ok(bytes);
            }
        }
    }

    fn run_tuned(&mut self, slot: &Slot<'_>) -> io::Result<u64> {
        let mut bytes = 0;
        while !slot.is_over() {
            for _ in 0..SENDS_PER_READ {
                bytes += self.send()?;
            }
            self.read_one()?;
        }
        Ok(bytes)
    }

    /// Sends one message, and returns its bytes; `None` if the call would block.
    fn sendmsg(&mut self) -> io::Result<Option<u64>> {
        let (base, len) = self.payload.message(self.sent);
        let mut iov = libc::iovec { iov_base: base.cast_mut(), iov_len: len };
        // SAFETY: all-zero bytes are a valid msghdr without name and control data.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        // SAFETY: message, vector and payload outlive the call; the kernel itself keeps the payload's pages
        // for longer, and nobody writes to them.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_ZEROCOPY;
            libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags)
        };
        if sent < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        self.sent += 1;
        Ok(Some(sent as u64))
    }

    /// Sends one message, and blocks until the kernel has taken it.
    fn send(&mut self) -> io::Result<u64> {
        loop {
            let (base, len) = self.payload.message(self.sent);
            // SAFETY: as in `sendmsg`.
            let sent =
                unsafe { libc::send(self.socket.as_raw_fd(), base, len, libc::MSG_ZEROCOPY) };
            if sent >= 0 {
                self.sent += 1;
                return Ok(sent as u64);
            }
            let error = io::Error::last_os_error();
            // ENOBUFS: unread returns have used up their memory (net.core.optmem_max).
            if error.raw_os_error() != Some(libc::ENOBUFS) {
                return Err(error);
            }
            self.is_ready(PollFlags::ERR, TIMEOUT)?;
            self.read_all()?;
        }
    }

    fn is_ready(&self, events: PollFlags, limit: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.socket, events)];
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        retry_on_intr(|| poll(&mut fds, Some(&limit)))?;
        Ok(fds[0].revents().intersects(events))
    }

    fn read_all(&mut self) -> io::Result<()> {
        while self.read_one()? {}
        Ok(())
    }

    /// Takes one range off the error queue. Returns false if the queue is empty.
    fn read_one(&mut self) -> io::Result<bool> {
        match zerocopy::read_error_queue(self.socket.as_fd())? {
            None => Ok(false),
            Some(Message::Completion(range)) => {
                let count = u64::from(range.last.wrapping_sub(range.first)) + 1;
                self.returned += count;
                self.copied += if range.copied { count } else { 0 };
                Ok(true)
            }
            Some(Message::Other(error)) => Err(error),
        }
    }

    fn await_returns(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        while self.returned < self.sent {
            let read = self.is_ready(PollFlags::ERR, TIMEOUT).and_then(|_| self.read_all());
            read.map_err(|error| format!("the error queue is unreadable: {error}"))?;
            if self.returned < self.sent && begin.elapsed() > TIMEOUT {
                return Err(format!(
                    "{} of {} sends were never returned",
                    self.sent - self.returned,
                    self.sent
                ));
            }
        }
        Ok(())
    }
}

impl Engine for MsgZerocopy {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let (sent, returned, copied) = (self.sent, self.returned, self.copied);
        let bytes = match self.kind {
            Loop::Seed => self.run_seed(slot),
            Loop::Tuned => self.run_tuned(slot),
        }
        .map_err(|error| format!("MSG_ZEROCOPY failed: {error}"))?;
        self.await_returns()?;
        let copied_part = (self.copied - copied) as f64 / (self.returned - returned).max(1) as f64;
        Ok(Tally {
            bytes,
            operations: Some(self.sent - sent),
            copied: Some((bytes as f64 * copied_part) as u64),
            ..Tally::default()
        })
    }
}
