//! Which of the NIC's queues each thread receives from: the first threads bind one each, and the others
//! share these.

use std::sync::mpsc::{Receiver, Sender, channel};

use handoff::{Error, ExportedRxQueue, RxQueue, Socket};
use handoff_command::Failure;
use handoff_command::failure::Failed;
use handoff_net::nic::{self, Card, Rules};

use crate::gathering;
use crate::job::Job;

const SHARING: &str = "sharing an rx queue";

/// How a thread gets its queue.
pub(crate) enum Turn<'a> {
    /// There is no NIC.
    Plain,
    /// Binds the queue of this number, with memory for so many connections, and shares it.
    Binds {
        card: &'a Card,
        number: usize,
        connections: usize,
        others: Vec<Sender<Option<ExportedRxQueue>>>,
    },
    /// Waits for the queue that another thread has bound; for nothing, if the kernel cannot share it.
    Shares(Receiver<Option<ExportedRxQueue>>),
}

/// The result.
pub(crate) enum Source {
    Plain,
    Queue(RxQueue),
    /// There is none for this thread.
    Nothing,
}

/// The queue of a thread, for so many threads.
pub(crate) fn number_of(thread: usize, queues: usize) -> usize {
    thread % queues
}

/// How each of so many threads gets one; at most `queues`, with `streams` connections together.
pub(crate) fn turns(
    card: Option<&Card>,
    threads: usize,
    queues: usize,
    streams: usize,
) -> Vec<Turn<'_>> {
    let Some(card) = card else { return (0..threads).map(|_| Turn::Plain).collect() };
    let mut others: Vec<Vec<_>> = (0..queues).map(|_| Vec::new()).collect();
    let mut shares = Vec::new();
    for thread in queues..threads {
        let (tell, told) = channel();
        others[number_of(thread, queues)].push(tell);
        shares.push(Turn::Shares(told));
    }
    let of = |stream| number_of(thread_of(stream, threads), queues);
    let binds = others.into_iter().enumerate().map(|(number, others)| {
        let steered = (0..streams).filter(|stream| of(*stream) == number).count();
        // So many if queues cannot be shared.
        let connections = steered.max(streams.div_ceil(queues));
        Turn::Binds { card, number, connections, others }
    });
    binds.chain(shares).collect()
}

impl Turn<'_> {
    /// Binds the queue, or waits for the thread that does.
    ///
    /// # Errors
    ///
    /// Why the queue cannot be bound or shared.
    pub(crate) fn take(self, job: &Job<'_>) -> Result<Source, Failure> {
        match self {
            Self::Plain => Ok(Source::Plain),
            Self::Binds { card, number, connections, others } => {
                let held = if job.order.args.direct { gathering::HELD * connections } else { 0 };
                let area = |len| job.reserved(len + held);
                let queue = nic::bind(&job.driver, card, number, connections, area)?;
                for other in others {
                    // It may be gone.
                    let _ = other.send(shared(job, &queue)?);
                }
                Ok(Source::Queue(queue))
            }
            // The thread that had to bind the queue has failed, and says why.
            Self::Shares(told) => match told.recv().ok().flatten() {
                Some(exported) => {
                    let queue = job.driver.import_rx_queue(&exported).failed(SHARING)?;
                    Ok(Source::Queue(queue))
                }
                None => Ok(Source::Nothing),
            },
        }
    }
}

fn shared(job: &Job<'_>, queue: &RxQueue) -> Result<Option<ExportedRxQueue>, Failure> {
    match queue.export() {
        Ok(exported) => Ok(Some(exported)),
        Err(error @ Error::EngineUnavailable { .. }) => {
            job.order.note(format!("one thread for each queue: {error}"));
            Ok(None)
        }
        Err(error) => Err(error).failed(SHARING),
    }
}

/// How connections are steered from the card to the threads.
pub(crate) struct Steering<'a> {
    /// The queue of the thread that does the handshake: first words may arrive there.
    pub(crate) queue: RxQueue,
    pub(crate) rules: Rules<'a>,
    /// Threads that receive, and their queues.
    pub(crate) threads: usize,
    pub(crate) queues: usize,
}

impl Steering<'_> {
    /// Steers a connection to the queue of the thread that receives from it.
    ///
    /// # Errors
    ///
    /// As [`Rules::steer`].
    pub(crate) fn steer(&self, connection: &Socket, stream: u16) -> Result<(), Failure> {
        let thread = thread_of(usize::from(stream), self.threads);
        self.rules.steer(connection, number_of(thread, self.queues))
    }
}

/// The thread for a stream, of so many.
pub(crate) fn thread_of(stream: usize, threads: usize) -> usize {
    stream % threads
}
