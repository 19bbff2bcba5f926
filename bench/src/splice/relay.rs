//! One stream or several through one thread, from one network to another, by routes of the library.
//!
//! Each slot has new streams, which run to their ends: only then does a route report what was copied.

use std::{cell::Cell, future::poll_fn, pin::pin, rc::Rc};

use futures_util::future::join_all;
use handoff::{
    Carried, Driver, Intake, RingUse, Route, RouteEngine, RouteSink, RouteSource, RxQueue,
};
use handoff_command::quantity::format_size;

use super::{
    Drain, Sender,
    apart::{Apart, Memory},
    device::Device,
    streams::Streams,
};
use crate::{
    measure::{Engine, Slot, Tally},
    network::{
        account::Account,
        binding::{self, bind},
        far::{FarEnd as _, Network as _},
        queues::OwnQueue,
        testbed::SHARED,
    },
    processor::Waits,
};

/// How a stream is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// This engine of the route passes it on, from a socket of any NIC.
    Engine(RouteEngine),
    /// The route sends from the memory that the receiving NIC puts the stream into, in chunks of this many bytes.
    Spans { chunk: usize },
    /// Nothing is passed on: received bytes are dropped, and as many others are sent.
    Apart { chunk: usize },
}

impl Way {
    /// The way's name in a row's name.
    pub(super) fn name(self) -> String {
        match self {
            Self::Engine(engine) => engine.name().to_owned(),
            Self::Spans { chunk } => format!("zcrx chunk={}", format_size(chunk as u64)),
            Self::Apart { chunk } => format!("apart chunk={}", format_size(chunk as u64)),
        }
    }

    fn engine(self) -> RouteEngine {
        match self {
            Self::Engine(engine) => engine,
            Self::Spans { .. } | Self::Apart { .. } => RouteEngine::Memory,
        }
    }
}

pub(super) struct Relay<'a> {
    driver: Driver,
    way: Way,
    /// The NIC's queue that spans are received from; `None` if a row does not receive spans.
    intake: Option<RxQueue>,
    /// The memory that is sent in place of received spans; `None` if the row passes the stream on.
    memory: Option<Memory>,
    connections: u32,
    // The queue is dropped after the driver: the kernel releases it with the driver's ring.
    queue: Option<OwnQueue<'a>>,
    streams: &'a Streams,
    account: Account<'a>,
}

impl<'a> Relay<'a> {
    pub(super) fn new(streams: &'a Streams, way: Way, connections: u32) -> Result<Self, String> {
        if way == Way::Engine(RouteEngine::GetBuf) {
            // A route would report a missing device only when it runs, and the row would have failed instead of
            // being skipped.
            Device::open()?;
        }
        let Streams { source, sink, .. } = streams;
        let threads = source.napi_of_connected().iter().chain(sink.napi_of_connecting());
        let account = Account::new(threads.cloned(), vec![source, sink]);
        let mut memory = None;
        let (driver, intake, queue) = match way {
            Way::Engine(_) => {
                (Driver::builder().ring(RingUse::Require).build().map_err(line)?, None, None)
            }
            Way::Spans { chunk } | Way::Apart { chunk } => {
                let queue = source.own_queue()?;
                let (driver, bound) = bind(
                    source,
                    &queue,
                    binding::Memory { chunk, connections: connections as usize, grows: false },
                )?;
                match way {
                    Way::Apart { .. } => {
                        memory = Some(Memory::new(&driver, connections as usize).map_err(line)?);
                    }
                    _ => drop(driver.register(&bound).map_err(line)?),
                }
                (driver, Some(bound), Some(queue))
            }
        };
        Ok(Self { driver, way, intake, memory, connections, queue, streams, account })
    }
}

/// What passes a stream on.
enum Passage {
    Route(Box<Route>),
    Apart(Box<Apart>),
}

impl Passage {
    fn progress(&self) -> Rc<Cell<u64>> {
        match self {
            Self::Route(route) => route.progress(),
            Self::Apart(apart) => apart.progress(),
        }
    }

    async fn run(self) -> Carried {
        match self {
            Self::Route(mut route) => route.run().await,
            Self::Apart(apart) => apart.run().await,
        }
    }
}

/// A stream that is being passed on: the bytes moved so far, and its two far ends.
struct Stream {
    moved: Rc<Cell<u64>>,
    sender: Sender,
    drain: Drain,
}

impl Relay<'_> {
    fn stream(&self) -> Result<(Passage, Stream), String> {
        let queue = self.queue.as_ref().map_or(SHARED, OwnQueue::number);
        let (near, sender) = self.streams.source.connect(queue)?;
        let (far, drain) = self.streams.sink.connect_to_drain()?;
        let intake = self.intake.as_ref().map(Intake::from);
        let near = self.driver.socket(near).map_err(line)?;
        let far = self.driver.socket(far).map_err(line)?;
        let passage = match (&self.memory, intake) {
            (Some(memory), Some(intake)) => {
                let apart = Apart::new(&near, intake, far, memory).map_err(line)?;
                Passage::Apart(Box::new(apart))
            }
            (_, intake) => {
                let (source, sink) = (RouteSource::Stream(near, intake), RouteSink::Socket(far));
                let route = Route::new(&self.driver, source, sink).only(self.way.engine());
                Passage::Route(Box::new(route))
            }
        };
        let moved = passage.progress();
        Ok((passage, Stream { moved, sender, drain }))
    }
}

fn line(error: handoff::Error) -> String {
    error.to_string()
}

/// Passes a stream on until the slot is over and the stream has ended.
async fn carry(passage: Passage, sender: &Sender, moved: &Cell<u64>, slot: &Slot<'_>) -> Carried {
    let mut run = pin!(passage.run());
    let (mut total, mut ended) = (None, false);
    poll_fn(|context| {
        let carried = run.as_mut().poll(context);
        if carried.is_pending() {
            if total.is_none() && slot.is_over() {
                total = Some(sender.rest());
            }
            if !ended && total == Some(moved.get()) {
                sender.end_stream();
                ended = true;
            }
        }
        carried
    })
    .await
}

impl Engine for Relay<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let streams = (0..self.connections).map(|_| self.stream());
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        let (passages, streams): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
        let waits = |streams: &[Stream]| -> Waits {
            streams.iter().flat_map(|it| [it.sender.waits(), it.drain.waits()]).collect()
        };
        let begun = self.account.begin(waits(&streams))?;
        // For several connections only the queue knows what was copied, for all of them together.
        let queue = self.intake.as_ref().filter(|_| self.connections > 1);
        let queue_copied = || queue.and_then(|queue| queue.stats().copied);
        let before = queue_copied();
        streams.iter().for_each(|stream| stream.sender.begin());
        let slot = slot.anew();
        let all = passages.into_iter().zip(&streams).map(|(passage, stream)| {
            let Stream { moved, sender, .. } = stream;
            carry(passage, sender, moved, &slot)
        });
        let carried = self.driver.block_on(join_all(all)).map_err(line)?;
        let (mut bytes, mut copied, mut unknown) = (0, 0, 0);
        let mut arrived = Ok(());
        for (carried, stream) in carried.into_iter().zip(&streams) {
            let Stream { sender, drain, .. } = stream;
            let came = carried.result.map_err(line).and_then(|()| drain.await_total(carried.bytes));
            arrived = arrived.and(came.map_err(|error| sender.failure().unwrap_or(error)));
            bytes += carried.bytes;
            copied += carried.taken.copied + carried.given.copied;
            unknown += carried.given.unknown;
            unknown += if queue.is_none() { carried.taken.unknown } else { 0 };
        }
        let spent = self.account.end(&begun, || waits(&streams))?;
        arrived?;
        match queue_copied().zip(before) {
            Some((after, before)) => copied += after - before,
            None if queue.is_some() => unknown += bytes,
            None => {}
        }
        Ok(Tally { bytes, copied: (unknown == 0).then_some(copied), ..spent })
    }

    fn warms_up(&self) -> bool {
        false
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }

    /// The kernel also copies what the sender lends to the relay, and what the relay sends, as often as these
    /// networks do.
    fn implied(&self, reported: f64) -> f64 {
        let Streams { source, sink, .. } = self.streams;
        reported + source.joint().copies_of_lent() + sink.joint().copies_of_sent()
    }
}
