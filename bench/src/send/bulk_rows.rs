//! The rows of sends in bulk: the same buffers through a lane of the socket.

use std::time::Instant;

use handoff::{Buffer, Driver, Lane, RingUse, Wait};

use super::{
    handoff_rows::{BETWEEN_LOOKS, GROUP, ON_LOAN, TIMEOUT, after, attached, memory, refused},
    testbed::Testbed,
};
use crate::measure::{self, Slot};

pub(super) struct Bulk {
    // The lanes are dropped before the driver: handles go first.
    lanes: Vec<Lane>,
    /// The index of the lane that gets the next buffer.
    next: usize,
    /// The index of the lane that has the oldest pushed buffer.
    oldest: usize,
    on_loan: u64,
    free: Vec<Buffer>,
    driver: Driver,
    batch: u32,
    messages: u64,
    returned: handoff::Tally,
}

impl Bulk {
    pub(super) fn new(
        testbed: &Testbed,
        bytes: u64,
        working_set: u64,
        batch: u32,
        sockets: u32,
    ) -> Result<Self, String> {
        let line = |error: handoff::Error| error.to_string();
        let driver =
            Driver::builder().ring(RingUse::Require).entries(2 * GROUP).build().map_err(line)?;
        let (region, free) = memory(&driver, bytes, working_set, false, true)?;
        let places = ON_LOAN.div_ceil(sockets.into()) as usize;
        let sockets = attached(&driver, testbed, sockets)?;
        let lanes = sockets.iter().map(|socket| socket.lane(&region, places).map_err(line));
        Ok(Self {
            lanes: lanes.collect::<Result<_, _>>()?,
            next: 0,
            oldest: 0,
            on_loan: 0,
            free,
            driver,
            batch,
            messages: 0,
            returned: handoff::Tally::default(),
        })
    }

    /// Pushes the requests of one system call, and submits them. The function claims returned buffers first, so
    /// that as little memory as possible takes part.
    fn send_batch(&mut self) -> Result<(), String> {
        self.claim()?;
        for _ in 0..self.batch {
            let buffer = loop {
                if self.on_loan < ON_LOAN
                    && let Some(buffer) = self.free.pop()
                {
                    break buffer;
                }
                self.turn(Wait::Event)?;
                self.claim()?;
            };
            self.lanes[self.next].push(buffer).map_err(refused)?;
            self.next = after(self.next, self.lanes.len());
            self.on_loan += 1;
        }
        self.turn(Wait::No)
    }

    fn turn(&mut self, wait: Wait) -> Result<(), String> {
        self.driver.turn(wait).map(drop).map_err(|error| error.to_string())
    }

    fn claim(&mut self) -> Result<(), String> {
        while let Some(finished) = self.lanes[self.oldest].take() {
            self.oldest = after(self.oldest, self.lanes.len());
            self.on_loan -= 1;
            finished.sent.map_err(|error| error.to_string())?;
            self.messages += 1;
            self.returned += finished.receipt.tally;
            self.free.push(finished.buffer);
        }
        Ok(())
    }

    fn await_returns(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            self.claim()?;
            if self.on_loan == 0 {
                return Ok(());
            }
            self.turn(Wait::AtMost(TIMEOUT))?;
            if begin.elapsed() > TIMEOUT {
                return Err(format!("after {TIMEOUT:?}, buffers are still on loan"));
            }
        }
    }
}

impl measure::Engine for Bulk {
    fn run(&mut self, slot: &Slot<'_>) -> Result<measure::Tally, String> {
        let (messages, returned) = (self.messages, self.returned);
        while !slot.is_over() {
            for _ in 0..BETWEEN_LOOKS / self.batch {
                self.send_batch()?;
            }
        }
        self.await_returns()?;
        let unknown = self.returned.unknown > returned.unknown;
        Ok(measure::Tally {
            bytes: self.returned.total() - returned.total(),
            operations: Some(self.messages - messages),
            copied: (!unknown).then(|| self.returned.copied - returned.copied),
            ..measure::Tally::default()
        })
    }
}
