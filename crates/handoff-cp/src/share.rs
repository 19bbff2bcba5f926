//! One thread's share of a transfer: the connections that its driver receives from.
//!
//! Contracts:
//! - the receive pool limits what is under way: with all of its chunks on their way to the file, the kernel
//!   receives no more, and the sender waits;
//! - the intake counts a share when its connections are through.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::{Pool, Receiver, RxQueue, RxStats, Socket, Tally};
use handoff_command::Failure;
use handoff_command::failure::Failed;
use handoff_net::arrived::Arrived;

use crate::connection::{Connection, RECEIVING};
use crate::ending::Ending;
use crate::intake::{Intake, Part};
use crate::job::Job;
use crate::sink::{Opened, Sink};

/// Bytes of a chunk of the receive pool: about what one receive yields at high rates.
const CHUNK: usize = 64 * 1024;

/// How long a failing receiver reads from the sender, so that its answer is not lost to a reset.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// A thread's task.
pub(crate) struct Share {
    /// The thread.
    pub(crate) number: usize,
    /// Hellos said.
    pub(crate) connections: Vec<OwnedFd>,
    pub(crate) opened: Opened,
    /// The number of the NIC's queue that they are steered to, if there is one, and what that had received
    /// before.
    pub(crate) queue: usize,
    pub(crate) before: RxStats,
    /// Bytes to receive into, if those are enough for the connections.
    pub(crate) memory: usize,
}

/// A share that a thread receives.
pub(crate) struct ShareReceiver<'a> {
    pub(crate) sink: Sink<'a>,
    pub(crate) receivers: Vec<Receiver>,
    /// Those of the receivers.
    sockets: Vec<Socket>,
    number: usize,
    queue: Option<(RxQueue, usize, RxStats)>,
    registered: bool,
}

impl<'a> ShareReceiver<'a> {
    /// Begins to receive, from the queue if there is one.
    ///
    /// # Errors
    ///
    /// The driver's refusals.
    pub(crate) fn begin(
        job: &'a Job<'a>,
        intake: &'a Intake<'a>,
        share: Share,
        queue: Option<RxQueue>,
    ) -> Result<Self, Failure> {
        let Share { number, connections, opened, queue: of_card, before, memory } = share;
        let sink = Sink::new(job, intake, opened)?;
        let least = CHUNK * (connections.len() + 1);
        let (pool, mut registered) = pool(job, memory.max(least))?;
        if let Some(queue) = &queue {
            // Registering it would make all of it memory.
            registered &= queue.chunks() == queue.chunks_limit() && job.register(queue);
        }
        let (mut receivers, mut sockets) = (Vec::new(), Vec::new());
        for connection in connections {
            let source = queue.as_ref().map_or_else(|| (&pool).into(), |queue| queue.or(&pool));
            let socket = job.driver.socket(connection).failed(RECEIVING)?;
            receivers.push(socket.receive(source).failed(RECEIVING)?);
            sockets.push(socket);
        }
        let queue = queue.map(|queue| (queue, of_card, before));
        Ok(Self { sink, receivers, sockets, number, queue, registered })
    }

    /// Receives to the end of all threads.
    ///
    /// # Errors
    ///
    /// The first failure of any thread.
    pub(crate) fn run(&mut self, ending: &Ending) -> Result<(), Failure> {
        let job = self.sink.job;
        // It may be known already that the transfer cannot be taken: then nothing of it is written.
        let ended = ending.check().and_then(|()| self.receive(ending)).and_then(|staged| {
            self.count(staged);
            ending.through();
            let sockets: Vec<_> = self.sockets.iter().collect();
            job.until_cut_off(&sockets, ending.wait(&job.driver))
        });
        ended.map_err(|failure| ending.fail(failure))
    }

    /// Receives from its connections; returns the bytes copied once more for alignment.
    fn receive(&mut self, ending: &Ending) -> Result<u64, Failure> {
        let sink = &self.sink;
        let connections = self.sockets.iter().zip(&mut self.receivers);
        let sockets: Vec<_> = self.sockets.iter().collect();
        sink.job.until_cut_off(&sockets, async {
            let receiving = async {
                let mut all: FuturesUnordered<_> = connections
                    .map(async |(socket, receiver)| {
                        Connection::new(sink, socket, receiver)?.take().await
                    })
                    .collect();
                let mut staged = 0;
                while let Some(copied) = all.next().await {
                    staged += copied?;
                }
                Ok(staged)
            };
            match select(pin!(receiving), pin!(ending.wait(&sink.job.driver))).await {
                Either::Left((taken, _)) => taken,
                // It does not come before this thread is through, unless one has failed.
                Either::Right((over, _)) => over.map(|()| 0),
            }
        })
    }

    fn count(&self, staged: u64) {
        let intake = self.sink.intake;
        let mut received = Tally::default();
        for receiver in &self.receivers {
            received += receiver.tally();
        }
        if let Some((queue, number, before)) = &self.queue {
            intake.look(*number, || Arrived::since(before, queue));
        }
        let part = Part {
            connections: self.receivers.len(),
            received,
            engines: self.receivers.iter().map(Receiver::engine).collect(),
            staged,
            unit: self.sink.unit(),
            written: self.sink.tally(),
            registered: self.registered,
        };
        intake.add(self.number, part);
    }
}

/// The chunks that all connections of a thread receive into, and whether they are registered.
fn pool(job: &Job<'_>, bytes: usize) -> Result<(Pool, bool), Failure> {
    let region = job.region(bytes)?;
    let registered = job.register(&region);
    let pool = job.driver.pool(region, CHUNK).failed("making a receive pool")?;
    Ok((pool, registered))
}

/// Reads the sender to its end: a connection closed with unread bytes is reset, and the reset would overtake the
/// answer.
pub(crate) async fn hear_out(receivers: &mut [Receiver]) {
    let mut all: FuturesUnordered<_> = receivers
        .iter_mut()
        .map(|receiver| async { while let Some(Ok(_)) = receiver.next_span().await {} })
        .collect();
    while all.next().await.is_some() {}
}
