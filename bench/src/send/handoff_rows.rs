//! handoff's own rows: io_uring zero copy through the library, as its users call it.
//!
//! A buffer is moved into each send and comes back. So there are at least as many messages of memory as are
//! on loan at a time, for any working set. A failed send shows in its return, which reports what happened
//! to each byte: no row keeps the handles of the first event.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use handoff::{
    Buffer, Driver, Group, GroupOnLoan, OnLoan, Pages, Refused, Region, RingUse, Socket, Wait,
};

use super::testbed::Testbed;
use crate::measure::{self, Slot};

/// The number of sends that share one return where a send has no return of its own.
pub(super) const GROUP: u32 = 32;
/// The most buffers on loan at a time: one group is filled while the group before is on loan.
pub(super) const ON_LOAN: u64 = 2 * GROUP as u64;
/// The number of sends between two looks at the clock: a multiple of every batch.
pub(super) const BETWEEN_LOOKS: u32 = 32;
pub(super) const PAGE: u64 = 4_096;
/// The longest wait for the last buffers of a slot.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// The batches of the rows, in sends per system call.
pub(super) const BATCHES: [u32; 3] = [1, 8, 32];

/// What one row does differently from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    /// Whether the memory is registered with the ring.
    pub(super) registered: bool,
    /// Whether each send has its own return; otherwise [`GROUP`] sends share one.
    pub(super) flush: bool,
    /// Sends per system call.
    pub(super) batch: u32,
    /// Whether the memory consists of huge pages.
    pub(super) huge: bool,
    /// The number of sockets that take turns.
    pub(super) sockets: u32,
    /// Payload bytes of each datagram; `None` if a message is one datagram.
    pub(super) segment: Option<u16>,
}

impl Way {
    pub(super) fn engine(&self) -> &'static str {
        if self.registered { "uring-zc-fixed" } else { "uring-zc" }
    }
}

/// All ways, slowest first. Several sockets have only the ways with registered base pages.
pub(super) fn ways(sockets: u32) -> impl Iterator<Item = Way> {
    let pages = [(false, false), (true, false), (true, true)];
    let pages = pages.into_iter().filter(move |&pages| sockets == 1 || pages == (true, false));
    pages.flat_map(move |(registered, huge)| {
        [true, false].into_iter().flat_map(move |flush| {
            BATCHES.into_iter().map(move |batch| {
                let segment = None;
                Way { registered, flush, batch, huge, sockets, segment }
            })
        })
    })
}

pub(super) struct UringZc {
    // The loans are dropped before the driver: handles go first.
    on_loan: VecDeque<OnLoan<Buffer>>,
    groups: VecDeque<GroupOnLoan<Buffer>>,
    open: Option<Group<Buffer>>,
    in_open: u32,
    free: Vec<Buffer>,
    sockets: Vec<Socket>,
    /// The index of the socket that sends next.
    next: usize,
    driver: Driver,
    way: Way,
    messages: u64,
    bytes: u64,
    returned: handoff::Tally,
}

impl UringZc {
    pub(super) fn new(
        testbed: &Testbed,
        bytes: u64,
        working_set: u64,
        way: Way,
    ) -> Result<Self, String> {
        let line = |error: handoff::Error| error.to_string();
        let driver =
            Driver::builder().ring(RingUse::Require).entries(2 * GROUP).build().map_err(line)?;
        let (_, free) = memory(&driver, bytes, working_set, way.huge, way.registered)?;
        let sockets = attached(&driver, testbed, way.sockets)?;
        for socket in &sockets {
            socket.set_engine(handoff::Engine::UringZc).map_err(line)?;
        }
        Ok(Self {
            on_loan: VecDeque::new(),
            groups: VecDeque::new(),
            open: None,
            in_open: 0,
            free,
            sockets,
            next: 0,
            driver,
            way,
            messages: 0,
            bytes: 0,
            returned: handoff::Tally::default(),
        })
    }

    /// Makes the requests of one system call, and submits them. The function claims returned buffers first, so
    /// that as little memory as possible takes part.
    fn send_batch(&mut self) -> Result<(), String> {
        self.claim();
        for _ in 0..self.way.batch {
            let buffer = self.next_buffer()?;
            self.messages += 1;
            self.bytes += buffer.len() as u64;
            let mut message = self.sockets[self.next].message(buffer);
            self.next = after(self.next, self.sockets.len());
            if let Some(bytes) = self.way.segment {
                message = message.segment(bytes.into());
            }
            if self.way.flush {
                let (_, on_loan) = message.send().map_err(refused)?.split();
                self.on_loan.push_back(on_loan);
            } else {
                let group = self.open.get_or_insert_with(|| self.driver.group());
                drop(message.send_in(group).map_err(refused)?);
                self.in_open += 1;
                if self.in_open == GROUP {
                    self.flush();
                }
            }
        }
        self.turn(Wait::No)
    }

    fn next_buffer(&mut self) -> Result<Buffer, String> {
        loop {
            if let Some(buffer) = self.free.pop() {
                return Ok(buffer);
            }
            self.claim();
            if self.free.is_empty() {
                self.turn(Wait::Event)?;
            }
        }
    }

    fn flush(&mut self) {
        self.groups.extend(self.open.take().map(Group::flush));
        self.in_open = 0;
    }

    fn turn(&mut self, wait: Wait) -> Result<(), String> {
        self.driver.turn(wait).map(drop).map_err(|error| error.to_string())
    }

    fn claim(&mut self) {
        while let Some(on_loan) = self.on_loan.pop_front() {
            match on_loan.try_take() {
                Ok(back) => {
                    self.free.push(back.buffer);
                    self.returned += back.receipt.tally;
                }
                Err(on_loan) => {
                    self.on_loan.push_front(on_loan);
                    break;
                }
            }
        }
        while let Some(group) = self.groups.pop_front() {
            match group.try_take(&mut self.free) {
                Ok(receipt) => self.returned += receipt.tally,
                Err(group) => {
                    self.groups.push_front(group);
                    break;
                }
            }
        }
    }

    fn await_returns(&mut self) -> Result<(), String> {
        self.flush();
        let begin = Instant::now();
        loop {
            self.claim();
            if self.on_loan.is_empty() && self.groups.is_empty() {
                return Ok(());
            }
            self.turn(Wait::AtMost(TIMEOUT))?;
            if begin.elapsed() > TIMEOUT {
                return Err(format!("after {TIMEOUT:?}, buffers are still on loan"));
            }
        }
    }
}

/// Opens `count` sockets that are connected to the target, and attaches them to the driver.
pub(super) fn attached(
    driver: &Driver,
    testbed: &Testbed,
    count: u32,
) -> Result<Vec<Socket>, String> {
    let attach = |socket| driver.socket(socket).map_err(|error| error.to_string());
    testbed.connect_all(count)?.into_iter().map(attach).collect()
}

/// The index after `place` if `count` take turns.
pub(super) fn after(place: usize, count: usize) -> usize {
    if place + 1 == count { 0 } else { place + 1 }
}

/// A region, and its filled messages: as many as the working set has, and at least [`ON_LOAN`].
pub(super) fn memory(
    driver: &Driver,
    bytes: u64,
    working_set: u64,
    huge: bool,
    registered: bool,
) -> Result<(Region, Vec<Buffer>), String> {
    let line = |error: handoff::Error| error.to_string();
    let stride = bytes.next_multiple_of(PAGE);
    let messages = (working_set / stride).max(ON_LOAN);
    let len = usize::try_from(stride * messages).map_err(|error| error.to_string())?;
    let mut region = if huge { Region::huge(len) } else { Region::anonymous(len) }.map_err(line)?;
    if let Pages::BaseInsteadOfHuge(reason) = region.pages() {
        return Err(reason.clone());
    }
    if registered {
        driver.register(&region).map_err(line)?;
    }
    let mut free = region.chunks(stride as usize);
    free.truncate(messages as usize);
    for buffer in &mut free {
        buffer.fill(0x5a);
        buffer.set_len(bytes as usize);
    }
    Ok((region, free))
}

pub(super) fn refused(refused: Refused<Buffer>) -> String {
    refused.error.to_string()
}

impl measure::Engine for UringZc {
    fn run(&mut self, slot: &Slot<'_>) -> Result<measure::Tally, String> {
        let (messages, bytes, returned) = (self.messages, self.bytes, self.returned);
        while !slot.is_over() {
            for _ in 0..BETWEEN_LOOKS / self.way.batch {
                self.send_batch()?;
            }
        }
        self.await_returns()?;
        let (bytes, taken) = (self.bytes - bytes, self.returned.total() - returned.total());
        if taken != bytes {
            return Err(format!("the kernel took {taken} of {bytes} bytes"));
        }
        let unknown = self.returned.unknown > returned.unknown;
        Ok(measure::Tally {
            bytes,
            operations: Some(self.messages - messages),
            copied: (!unknown).then(|| self.returned.copied - returned.copied),
            ..measure::Tally::default()
        })
    }
}
