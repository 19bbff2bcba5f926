//! A thread that relays, with a driver of its own. The first one binds the NIC's queue, and the others receive from
//! it, too. Each of them lets clients in as soon as it has the queue; the first one says that the relay listens, and lets
//! clients in, when all have it.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use handoff::{Driver, Executor, ExportedRxQueue, Region, RxQueue};
use handoff_command::allow_list;
use handoff_command::clock::Clock;
use handoff_command::descriptors::Reserve;
use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop, clock, output, service};
use handoff_net::listening::{Goal, Listening, Target};
use handoff_net::nic::{self, Card};

use super::accept::{self, ConnectionLimit, Ends};
use super::args::{Args, EngineName};
use super::counters::{Counters, Shared};
use super::shared::Relay;
use super::stats;
use super::target::Targets;

/// Between looks at how far connections are.
const LOOK: Duration = Duration::from_secs(1);

/// Memory for what clients send by another way than the NIC that was named, and a piece of it.
const POOL: usize = 16 << 20;
const CHUNK: usize = 64 << 10;

const SETTING_ASIDE: &str = "setting memory aside";

pub(super) struct Worker<'a> {
    pub(super) number: usize,
    pub(super) args: &'a Args,
    /// The most at once.
    pub(super) connections: u32,
    /// To splice through.
    pub(super) pipes: usize,
    /// Descriptors that clients who wait don't get.
    pub(super) reserve: usize,
    /// What all threads have to say.
    pub(super) note: Option<String>,
    pub(super) listener: Listening,
    pub(super) goal: &'a Goal,
    /// Its addresses now.
    pub(super) target: Vec<Target>,
    pub(super) shared: Shared,
    pub(super) limit: &'a ConnectionLimit,
    pub(super) stop: Stop,
    /// Readable when another thread has failed.
    pub(super) quit: UnixStream,
    pub(super) turn: Turn<'a>,
}

/// What a thread does before it relays.
pub(super) enum Turn<'a> {
    First(First<'a>),
    Other { told: Receiver<Option<ExportedRxQueue>>, is_ready: Sender<()> },
}

/// What the first thread knows.
pub(super) struct First<'a> {
    /// Where all listen, in words.
    pub(super) said: String,
    /// Those of TCP.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) card: Option<&'a Card>,
    /// Where to answer what was done so far.
    pub(super) stats: Option<(Listening, Clock)>,
    /// Has the others have the queue, if there is one, and hears when they do.
    pub(super) others: Vec<(Sender<Option<ExportedRxQueue>>, Receiver<()>)>,
}

impl Worker<'_> {
    /// Relays until it is to stop, or all connections are through.
    ///
    /// # Errors
    ///
    /// What keeps it from doing so.
    pub(super) fn relay(self) -> Result<(), Failure> {
        let Self { number, args, connections, turn, .. } = self;
        let driver = driver(args, connections, self.pipes)?;
        if args.engine == EngineName::GetBuf {
            driver.get_buf().map_err(Failure::not_possible)?;
        }
        // Before the queue, which has rules made for it.
        let (queue, stats) = match turn {
            Turn::First(first) => {
                let queue = first.bind(&driver, args.max_connections as usize)?;
                if !first.wait_for_others(queue.as_ref())? {
                    // One of them has failed, and says why.
                    return Ok(());
                }
                output::say(&first.said);
                service::ready(&first.said);
                for address in first.addresses {
                    allow_list::warn(address, args.addresses.from(), "use it");
                }
                (queue, first.stats)
            }
            Turn::Other { told, is_ready } => {
                // The first has failed, and says why.
                let Ok(exported) = told.recv() else { return Ok(()) };
                let import = |exported| driver.import_rx_queue(exported);
                let queue = exported.as_ref().map(import).transpose();
                let queue = queue.failed("sharing an rx queue")?;
                // As above.
                let _ = is_ready.send(());
                (queue, None)
            }
        };
        let intake = match &queue {
            Some(queue) => {
                // For what comes by another way than this NIC.
                let pool = Region::anonymous(POOL).failed(SETTING_ASIDE)?;
                Some(queue.or(&driver.pool(pool, CHUNK).failed(SETTING_ASIDE)?))
            }
            None => None,
        };
        let relay = Rc::new(Relay {
            most_open: connections,
            engine: args.engine.only(),
            intake,
            target: Targets::new(self.goal, args.addresses.family(), self.target),
            proxy_protocol: args.proxy_protocol,
            accept_proxy: args.accept_proxy,
            most_per_client: args.max_per_client,
            connect_timeout: args.connect_timeout,
            reserve: Reserve::new(self.reserve),
            beside_client: args.engine.descriptors() - 1,
            least_rate: args.least_rate,
            idle: (!args.idle.is_zero()).then_some(args.idle),
            look: match args.idle.is_zero() {
                true => LOOK,
                false => clock::between_looks(args.idle),
            },
            counters: Counters::new(self.shared.clone(), number),
            driver,
        });
        self.note.into_iter().for_each(|note| relay.counters.note(note));
        if let Some(reason) = relay.driver.ring_unavailable() {
            relay.counters.note(format!("plain system calls instead of io_uring: {reason}"));
        }
        let executor = Executor::new(&relay.driver);
        if let Some((listening, clock)) = stats {
            let said = listening.said("http")?;
            let answering = stats::serve(&relay.driver, listening, self.shared, clock)?;
            executor.spawn(answering).detach();
            output::say(format_args!("counts: {said}"));
        }
        let ends = Ends { stop: &self.stop, quit: self.quit, limit: self.limit };
        let ended = executor.run(accept::run(&relay, &executor, self.listener, args, ends));
        // What is still under way is dropped, and counted, before the report.
        drop(executor);
        relay.counters.close(queue.as_ref());
        ended.failed("relaying")?
    }
}

impl First<'_> {
    /// Binds the queue of the card, with an area for so many connections.
    fn bind(&self, driver: &Driver, connections: usize) -> Result<Option<RxQueue>, Failure> {
        let area = |len| Region::reserved(len).failed(SETTING_ASIDE);
        let bind = |card| nic::bind(driver, card, 0, connections, area);
        self.card.map(bind).transpose()
    }

    /// Shares the queue; whether all others are ready.
    fn wait_for_others(&self, queue: Option<&RxQueue>) -> Result<bool, Failure> {
        for (tell, _) in &self.others {
            let exported = queue.map(RxQueue::export).transpose();
            // It may be gone.
            let _ = tell.send(exported.failed("sharing an rx queue")?);
        }
        Ok(self.others.iter().all(|(_, ready)| ready.recv().is_ok()))
    }
}

/// A driver with room for so many connections, and so many pipes.
fn driver(args: &Args, connections: u32, pipes: usize) -> Result<Driver, Failure> {
    Driver::builder()
        .entries(1024)
        .zero_copy_receive(args.nic.is_some())
        // Both directions: what waits to be lent, and what is on its way.
        .in_flight(64 + stats::ASKERS * 24 + connections as usize * 48)
        .registered_buffers((64 + connections * 34).min(16_384))
        .registered_files((64 + connections * 6).min(16_384))
        .pipes(pipes)
        .build()
        .map_err(Failure::not_possible)
}
