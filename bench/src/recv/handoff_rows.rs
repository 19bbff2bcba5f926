//! handoff's own rows: the library's ways to receive, as its users call them. The rows differ only in where
//! bytes go.

use std::time::Instant;

use handoff::{
    Driver, Intake, MappedIntake, ReceiveEngine, Receiver, Region, RingUse, RxBinding, RxQueue,
    Socket, Wait,
};
use handoff_command::growth::Growth;

use super::reception::Receive;
use crate::network::{
    TIMEOUT,
    binding::{Memory, bind},
    far::{FarEnd, Network},
    pattern::Stream,
    queues::OwnQueue,
};

/// Bytes of a pool's buffer, and the number of buffers.
const POOL: (usize, usize) = (64 << 10, 16);
/// Bytes of a window's place, and the number of places.
const WINDOW: (usize, usize) = (256 << 10, 16);

/// Where received bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// Into a pool of buffers.
    Pool,
    /// Into a window of address space, where the kernel maps pages.
    Window,
    /// Into an area, where the kernel copies bytes in place of a NIC.
    AreaWithoutNic,
    /// Into an area, where the NIC puts bytes in chunks of this size.
    Area { chunk: usize, by: By, grows: bool },
}

/// How the receiver looks at bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// A visitor looks at each span, which the library takes back at once.
    Visit,
    /// The receiver owns each span, and could keep it or lend it on.
    Spans,
}

impl By {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Visit => "visit",
            Self::Spans => "spans",
        }
    }
}

impl To {
    pub(super) fn engine(self) -> ReceiveEngine {
        match self {
            Self::Pool => ReceiveEngine::Multishot,
            Self::Window => ReceiveEngine::TcpZerocopyReceive,
            Self::AreaWithoutNic => ReceiveEngine::ZcrxNodev,
            Self::Area { .. } => ReceiveEngine::Zcrx,
        }
    }
}

pub(super) struct Handoff<'a> {
    // The receiver is dropped before the driver: handles go first.
    receiver: Receiver,
    by: By,
    _socket: Socket,
    bound: Option<RxQueue>,
    driver: Driver,
    // The queue is dropped after the driver: the kernel releases it with the driver's ring.
    queue: Option<OwnQueue<'a>>,
}

impl<'a> Handoff<'a> {
    /// Makes a new connection that this engine receives from.
    pub(super) fn new(
        network: &'a impl Network,
        to: To,
    ) -> Result<(Self, Box<dyn FarEnd>), String> {
        let (queue, bound, (driver, intake)) = match to {
            To::Area { chunk, grows, .. } => {
                let queue = network.own_queue()?;
                let memory = Memory { chunk, connections: 1, grows };
                let (driver, bound) = bind(network, &queue, memory)?;
                let intake = Intake::from(&bound);
                (Some(queue), Some(bound), (driver, intake))
            }
            _ => (None, None, shared(to).map_err(line)?),
        };
        // The connection comes only now: bytes that reach a queue before it is bound are not in the area.
        let (socket, sender) = network.connect(queue.as_ref())?;
        let socket = driver.socket(socket).map_err(line)?;
        let receiver = socket.receive(intake).map_err(line)?;
        let by = if let To::Area { by, .. } = to { by } else { By::Spans };
        Ok((Self { receiver, by, _socket: socket, bound, driver, queue }, sender))
    }
}

/// Makes a driver and an intake for the ways that need no queue of their own.
fn shared(to: To) -> handoff::Result<(Driver, Intake)> {
    let in_area = to == To::AreaWithoutNic;
    let driver = Driver::builder().ring(RingUse::Require).zero_copy_receive(in_area).build()?;
    let intake = match to {
        To::Window => {
            let window = driver.window(WINDOW.1, WINDOW.0)?;
            // SAFETY: the far end is ours, and gives the kernel no memory that it writes later.
            unsafe { MappedIntake::from(&window).trust_peers() }
        }
        To::AreaWithoutNic => {
            let binding = RxBinding::without_device();
            Intake::from(&driver.rx_queue(Region::anonymous(binding.area(1))?, &binding)?)
        }
        _ => Intake::from(&driver.pool(Region::anonymous(POOL.0 * POOL.1)?, POOL.0)?),
    };
    Ok((driver, intake))
}

fn line(error: handoff::Error) -> String {
    error.to_string()
}

impl Receive for Handoff<'_> {
    fn receive(&mut self, stream: &mut Stream) -> Result<(), String> {
        let (before, mut begin) = (stream.position(), None);
        loop {
            self.driver.turn(Wait::AtMost(TIMEOUT)).map_err(line)?;
            match self.by {
                By::Visit => {
                    if let Some(end) = self.receiver.visit(|span| stream.take(&span)) {
                        end.map_err(line)?;
                        return Err("the connection has ended".into());
                    }
                }
                By::Spans => {
                    while let Some(next) = self.receiver.try_next_span() {
                        let span = next.ok_or("the connection has ended")?;
                        stream.take(&span.map_err(line)?);
                    }
                }
            }
            if stream.position() > before {
                return Ok(());
            }
            // The turn ended without bytes for this connection.
            if begin.get_or_insert_with(Instant::now).elapsed() > TIMEOUT {
                return Err(format!("nothing arrived for {TIMEOUT:?}"));
            }
        }
    }

    fn copied(&self) -> Option<u64> {
        let tally = self.receiver.tally();
        (tally.unknown == 0).then_some(tally.copied)
    }

    fn growth(&self) -> Vec<Growth> {
        self.bound.as_ref().map_or_else(Vec::new, Growth::of)
    }

    fn own_queue(&self) -> Option<&OwnQueue<'_>> {
        self.queue.as_ref()
    }
}
