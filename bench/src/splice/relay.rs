//! One stream through one thread, from a network to another, by a route of the library.
//!
//! Each slot is a stream of its own, to its end, since that is when a route tells what was copied.

use std::{cell::Cell, future::poll_fn, pin::pin, rc::Rc};

use handoff::{Carried, Driver, Intake, RingUse, Route, RouteEngine, RouteSink, RouteSource};

use super::{Sender, device::Device, streams::Streams};
use crate::{
    measure::{Engine, Slot, Tally},
    network::{account::Account, bed::SHARED, binding::bind, queues::OwnQueue},
    quantity::format_size,
};

/// How a stream is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By this engine of the route, from a socket of any NIC.
    Engine(RouteEngine),
    /// Out of the memory that the receiving NIC puts it into, in chunks of so many bytes.
    Spans { chunk: usize },
}

impl Way {
    /// In the names of rows.
    pub(super) fn name(self) -> String {
        match self {
            Self::Engine(engine) => engine.name().to_owned(),
            Self::Spans { chunk } => format!("zcrx chunk={}", format_size(chunk as u64)),
        }
    }

    fn engine(self) -> RouteEngine {
        match self {
            Self::Engine(engine) => engine,
            Self::Spans { .. } => RouteEngine::Memory,
        }
    }
}

pub(super) struct Relay<'a> {
    driver: Driver,
    way: Way,
    /// What spans are received from.
    intake: Option<Intake>,
    // Behind the driver, with which the kernel lets go of it.
    queue: Option<OwnQueue<'a>>,
    streams: &'a Streams,
    account: Account<'a>,
}

impl<'a> Relay<'a> {
    pub(super) fn new(streams: &'a Streams, way: Way) -> Result<Self, String> {
        if way == Way::Engine(RouteEngine::GetBuf) {
            // A route would tell only when it runs, which is a failure then.
            Device::open()?;
        }
        let Streams { source, sink, .. } = streams;
        let threads = source.napi_of_connected().iter().chain(sink.napi_of_connecting());
        let account = Account::new(threads.cloned(), vec![source, sink]);
        let (driver, intake, queue) = match way {
            Way::Engine(_) => {
                (Driver::builder().ring(RingUse::Require).build().map_err(line)?, None, None)
            }
            Way::Spans { chunk } => {
                let queue = source.own_queue()?;
                let (driver, bound) = bind(source, &queue, chunk, 1)?;
                (driver, Some(Intake::from(&bound)), Some(queue))
            }
        };
        Ok(Self { driver, way, intake, queue, streams, account })
    }
}

fn line(error: handoff::Error) -> String {
    error.to_string()
}

/// Runs a route until the slot is over and the stream has ended.
async fn carry(route: &mut Route, sender: &Sender, moved: &Cell<u64>, slot: &Slot<'_>) -> Carried {
    let mut run = pin!(route.run());
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
        let queue = self.queue.as_ref().map_or(SHARED, OwnQueue::number);
        let (near, sender) = self.streams.source.connect(queue)?;
        let (far, drain) = self.streams.sink.connect_to_drain()?;
        let source =
            RouteSource::Stream(self.driver.socket(near).map_err(line)?, self.intake.clone());
        let sink = RouteSink::Socket(self.driver.socket(far).map_err(line)?);
        let mut route = Route::new(&self.driver, source, sink).only(self.way.engine());
        let moved: Rc<Cell<u64>> = route.progress();

        let waited = || sender.kept_waiting().max(drain.kept_waiting());
        let begun = self.account.begin(waited())?;
        sender.begin();
        let slot = slot.anew();
        let carried = self.driver.block_on(carry(&mut route, &sender, &moved, &slot));
        let carried = carried.map_err(line)?;
        let arrived = carried.result.map_err(line).and_then(|()| drain.await_total(carried.bytes));
        let spent = self.account.end(&begun, waited)?;
        arrived.map_err(|error| sender.failure().unwrap_or(error))?;
        let known = carried.taken.unknown + carried.given.unknown == 0;
        Ok(Tally {
            bytes: carried.bytes,
            copied: known.then_some(carried.taken.copied + carried.given.copied),
            ..spent
        })
    }

    fn warms_up(&self) -> bool {
        false
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }

    /// The sender of the stream lends.
    fn implied(&self, reported: f64) -> f64 {
        let Streams { source, sink, .. } = self.streams;
        reported + source.joint().copies_of_lent() + sink.joint().copies_of_sent()
    }
}
