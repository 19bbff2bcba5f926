//! The rows of `--fan-out`: the same bytes to many sockets in turns, copied out of one buffer, and lent as one
//! frozen buffer.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    rc::Rc,
    time::Instant,
};

use handoff::{Driver, Frozen, RingUse, Socket, Wait};

use super::{
    handoff_rows::{GROUP, ON_LOAN, TIMEOUT, memory},
    payload::Payload,
    testbed::Testbed,
};
use crate::measure::{Engine, Slot, Tally};

/// The baseline: sendmsg(2) of one buffer to each socket.
pub(super) struct CopyToAll {
    sockets: Vec<OwnedFd>,
    payload: Rc<Payload>,
    rounds: u64,
}

impl CopyToAll {
    pub(super) fn new(testbed: &Testbed, payload: Rc<Payload>, sockets: u32) -> io::Result<Self> {
        let sockets = (0..sockets).map(|_| testbed.connect()).collect::<io::Result<_>>()?;
        Ok(Self { sockets, payload, rounds: 0 })
    }
}

impl Engine for CopyToAll {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let mut messages = 0;
        while !slot.is_over() {
            for _ in 0..rounds_between_looks(self.sockets.len()) {
                let (address, len) = self.payload.message(self.rounds);
                let mut piece = libc::iovec { iov_base: address.cast_mut(), iov_len: len };
                // SAFETY: all-zero bytes are a valid msghdr without name and control data.
                let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
                message.msg_iov = &raw mut piece;
                message.msg_iovlen = 1;
                for socket in &self.sockets {
                    // SAFETY: message, vector and payload outlive the call.
                    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
                    if sent < 0 {
                        return Err(format!("sendmsg failed: {}", io::Error::last_os_error()));
                    }
                    tally.bytes += sent as u64;
                    messages += 1;
                }
                self.rounds += 1;
            }
        }
        tally.operations = Some(messages);
        tally.copied = Some(tally.bytes);
        Ok(tally)
    }
}

/// The library's row: each socket is lent a clone of one frozen buffer, and nobody waits for a single return.
pub(super) struct LendToAll {
    sockets: Vec<Socket>,
    payloads: Vec<Frozen>,
    driver: Driver,
    rounds: u64,
    messages: u64,
    bytes: u64,
}

impl LendToAll {
    pub(super) fn new(
        testbed: &Testbed,
        bytes: u64,
        working_set: u64,
        registered: bool,
        sockets: u32,
    ) -> Result<Self, String> {
        let line = |error: handoff::Error| error.to_string();
        let driver =
            Driver::builder().ring(RingUse::Require).entries(2 * GROUP).build().map_err(line)?;
        let (_, buffers) = memory(&driver, bytes, working_set, false, registered)?;
        // The row takes as many buffers as the working set has: a send does not take the frozen buffer away.
        let wanted = (working_set / bytes.max(1)).max(1) as usize;
        let payloads = buffers.into_iter().take(wanted).map(handoff::Buffer::freeze).collect();
        let connect = |_| {
            let socket = driver.socket(testbed.connect().map_err(|error| error.to_string())?);
            let socket = socket.map_err(line)?;
            socket.set_engine(handoff::Engine::UringZc).map_err(line)?;
            Ok(socket)
        };
        let sockets = (0..sockets).map(connect).collect::<Result<_, String>>()?;
        Ok(Self { sockets, payloads, driver, rounds: 0, messages: 0, bytes: 0 })
    }

    /// Waits until at most `most` buffers are on loan.
    fn make_room(&self, most: usize) -> Result<(), String> {
        let begin = Instant::now();
        while self.driver.in_flight() > most {
            self.driver.turn(Wait::AtMost(TIMEOUT)).map_err(|error| error.to_string())?;
            if begin.elapsed() > TIMEOUT {
                return Err(format!("after {TIMEOUT:?}, loans are still out"));
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), String> {
        let frozen = &self.payloads[self.rounds as usize % self.payloads.len()];
        self.rounds += 1;
        for socket in &self.sockets {
            if self.driver.in_flight() >= ON_LOAN as usize {
                self.make_room(ON_LOAN as usize - 1)?;
            }
            // The handle can go: an error shows in the bytes that came back.
            drop(socket.send(frozen.clone()).map_err(|refused| refused.error.to_string())?);
            self.messages += 1;
            self.bytes += frozen.len() as u64;
            if self.messages.is_multiple_of(GROUP.into()) {
                self.driver.turn(Wait::No).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn returned(&self) -> handoff::Tally {
        let mut sum = handoff::Tally::default();
        self.sockets.iter().for_each(|socket| sum += socket.send_stats().returned);
        sum
    }
}

impl Engine for LendToAll {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let (messages, bytes, returned) = (self.messages, self.bytes, self.returned());
        while !slot.is_over() {
            for _ in 0..rounds_between_looks(self.sockets.len()) {
                self.round()?;
            }
        }
        self.make_room(0)?;
        let (bytes, now) = (self.bytes - bytes, self.returned());
        let taken = now.total() - returned.total();
        if taken != bytes {
            return Err(format!("the kernel took {taken} of {bytes} bytes"));
        }
        let unknown = now.unknown > returned.unknown;
        Ok(Tally {
            bytes,
            operations: Some(self.messages - messages),
            copied: (!unknown).then(|| now.copied - returned.copied),
            ..Tally::default()
        })
    }
}

/// The number of rounds between two looks at the clock, so that all rows look after about as many messages.
fn rounds_between_looks(sockets: usize) -> usize {
    (32 / sockets.max(1)).max(1)
}
