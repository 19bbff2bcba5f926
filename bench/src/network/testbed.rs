//! The network of one load: two namespaces, a pair of NICs between them, and connections.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    sync::Arc,
};

use handoff_command::Failure;
use handoff_nic::Prepared;
use handoff_testbed::{Namespace, Pair, PairEnd, TopologyError};
use rustix::thread::CpuSet;

use super::{
    account::Account,
    drain::Drain,
    far::{Connection, FarEnd, Network},
    nic,
    pattern::Pattern,
    queues::{OwnQueue, Queues},
    sender::Sender,
};
use crate::{failure::of_testbed, peer::Placeholders};

/// The port of queue 0. The port of queue N is N more.
const PORT: u16 = 4_000;
/// The queue for connections that need no queue of their own.
pub(crate) const SHARED: u16 = 1;

/// The frames that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) mtu: u32,
    /// Whether frames arrive as the sender passed them on.
    pub(crate) gro: bool,
}

/// How the two ends are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joint {
    /// Software NICs with queues.
    Wire,
    /// A pair of veth devices.
    Veth,
    /// Virtio-net devices of the lab's guest, joined inside QEMU.
    VirtioNet,
}

impl Joint {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Veth => "veth",
            Self::VirtioNet => "virtio-net",
        }
    }

    /// How often the kernel copies each byte lent at the other end before it arrives.
    pub(crate) fn copies_of_lent(self) -> f64 {
        match self {
            Self::Wire => 0.0,
            Self::Veth | Self::VirtioNet => 1.0,
        }
    }

    /// How often the kernel copies each byte on its way to the device without a report: where it cuts
    /// frames in place of the device.
    pub(crate) fn copies_of_sent(self) -> f64 {
        match self {
            Self::Wire | Self::Veth => 0.0,
            Self::VirtioNet => 1.0,
        }
    }
}

/// The network of one load. It is removed when this value is dropped.
pub(crate) struct Testbed {
    // The prepared settings are dropped before the pair, whose devices they put back.
    prepared: Vec<Prepared>,
    pair: Pair,
    joint: Joint,
    load: Load,
    queues: Queues,
    /// The NAPI threads of the connecting end, and of the listening end.
    napi: [Vec<PathBuf>; 2],
    pattern: Arc<Pattern>,
    /// The processors of the threads at far ends.
    others: CpuSet,
}

impl Testbed {
    /// Joins two hosts by software NICs, or by veth if the kernel has none.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(crate) fn new(load: Load, pattern: &Arc<Pattern>, others: CpuSet) -> Result<Self, Failure> {
        let (joint, pair) = match Pair::wire(load.mtu) {
            Ok(pair) => (Joint::Wire, pair),
            Err(TopologyError::Unavailable { .. }) => {
                (Joint::Veth, Pair::new(load.mtu).map_err(of_testbed)?)
            }
            Err(error) => return Err(of_testbed(error)),
        };
        Self::of(joint, pair, load, pattern, others)
    }

    /// Joins two hosts by virtio-net devices; frames are as long as the MTU, whatever is sent.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(crate) fn virtio_net(
        mtu: u32,
        pattern: &Arc<Pattern>,
        others: CpuSet,
    ) -> Result<Self, Failure> {
        let pair = Pair::virtio(mtu).map_err(of_testbed)?;
        Self::of(Joint::VirtioNet, pair, Load { mtu, gro: false }, pattern, others)
    }

    /// Makes another such network behind this one: there the listening host of this network is the one that
    /// connects. Works once.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(crate) fn onward(&self) -> Result<Self, Failure> {
        let Self { pair, joint, load, pattern, others, .. } = self;
        Self::of(*joint, pair.onward(load.mtu).map_err(of_testbed)?, *load, pattern, *others)
    }

    fn of(
        joint: Joint,
        pair: Pair,
        load: Load,
        pattern: &Arc<Pattern>,
        others: CpuSet,
    ) -> Result<Self, Failure> {
        let (mut prepared, mut napi) = (Vec::new(), [Vec::new(), Vec::new()]);
        let threads = |end| nic::give_napi_threads(end).map_err(Failure::Failed);
        match joint {
            Joint::Wire => {
                let set_up = nic::set_up_queues(&pair.right, PORT, load.gro);
                prepared.push(set_up.map_err(Failure::Failed)?);
                napi = [threads(&pair.left)?, threads(&pair.right)?];
            }
            Joint::VirtioNet => napi = [threads(&pair.left)?, threads(&pair.right)?],
            Joint::Veth if !load.gro => {
                nic::send_in_packets(&pair.left).map_err(Failure::Failed)?;
            }
            Joint::Veth => {}
        }
        let queues = Queues::new((SHARED + 1..=nic::LAST_QUEUE).map(|queue| (queue, PORT + queue)));
        let pattern = Arc::clone(pattern);
        Ok(Self { prepared, pair, joint, load, queues, napi, pattern, others })
    }

    pub(crate) fn joint(&self) -> Joint {
        self.joint
    }

    /// The threads that handle packets which arrive at the connecting end, as their directories in `/proc`;
    /// empty if any thread may handle them.
    pub(crate) fn napi_of_connecting(&self) -> &[PathBuf] {
        &self.napi[0]
    }

    /// The threads that handle packets which arrive at the listening end, in the same way.
    pub(crate) fn napi_of_connected(&self) -> &[PathBuf] {
        &self.napi[1]
    }

    /// Makes frames arrive at the connecting end as they do at the listening end, for long answers.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(crate) fn receive_at_both_ends(&mut self) -> Result<(), Failure> {
        match self.joint {
            Joint::Wire => {
                let set_up = nic::set_up_queues(&self.pair.left, PORT, self.load.gro);
                self.prepared.push(set_up.map_err(Failure::Failed)?);
                Ok(())
            }
            Joint::Veth if !self.load.gro => {
                nic::send_in_packets(&self.pair.right).map_err(Failure::Failed)
            }
            Joint::Veth | Joint::VirtioNet => Ok(()),
        }
    }

    /// The connecting end.
    pub(crate) fn connecting(&self) -> &PairEnd {
        &self.pair.left
    }

    /// The listening end.
    pub(crate) fn connected(&self) -> &PairEnd {
        &self.pair.right
    }

    /// The processors of the threads at far ends.
    pub(crate) fn others(&self) -> CpuSet {
        self.others
    }

    /// Makes a connection to receive from, whose packets come by this queue. Returns its receiving end, and the
    /// sender at the other end.
    ///
    /// # Errors
    ///
    /// One line that says why there is none.
    pub(crate) fn connect(&self, queue: u16) -> Result<(TcpStream, Sender), String> {
        let (connecting, connected) = self.join(queue)?;
        Ok((connected, self.sender(connecting)?))
    }

    /// Makes a connection to send to. Returns its sending end, and the receiver at the other end.
    ///
    /// # Errors
    ///
    /// One line that says why there is none.
    pub(crate) fn connect_to_drain(&self) -> Result<(TcpStream, Drain), String> {
        let (connecting, connected) = self.connection()?;
        Ok((connecting, self.drain(connected)?))
    }

    /// Makes a connection. Returns its connecting end, and the other end.
    ///
    /// # Errors
    ///
    /// One line that says why there is none.
    pub(crate) fn connection(&self) -> Result<(TcpStream, TcpStream), String> {
        self.join(SHARED)
    }

    fn join(&self, queue: u16) -> Result<(TcpStream, TcpStream), String> {
        let listener = self.listen(queue)?;
        let connecting = self.reach(queue)?.ok_or("no connection: it was refused")?;
        let (connected, _) =
            listener.accept().map_err(|error| format!("no connection: {error}"))?;
        Ok((connecting, connected))
    }

    /// Listens at the listening end for connections whose packets come by this queue.
    ///
    /// # Errors
    ///
    /// One line with the error.
    pub(crate) fn listen(&self, queue: u16) -> Result<TcpListener, String> {
        let (address, port) = self.far_address(queue);
        let listening = self.inside(|| TcpListener::bind((address, port)))?;
        listening.map_err(|error| format!("cannot listen at port {port}: {error}"))
    }

    /// Connects to the listener of this queue; returns `None` if nobody listens.
    ///
    /// # Errors
    ///
    /// One line that says why there is no connection.
    pub(crate) fn reach(&self, queue: u16) -> Result<Option<TcpStream>, String> {
        let connect = || TcpStream::connect(self.far_address(queue));
        let connected = self.pair.left.namespace().run(connect);
        match connected.map_err(|error| error.to_string())? {
            Ok(connecting) => Ok(Some(connecting)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
            Err(error) => Err(format!("no connection: {error}")),
        }
    }

    /// The address for connections whose packets must come by this queue.
    pub(crate) fn far_address(&self, queue: u16) -> (Ipv4Addr, u16) {
        (self.pair.right.v4(), PORT + queue)
    }

    /// Starts the sender of a connection to a program.
    ///
    /// # Errors
    ///
    /// If no thread can be started, in one line.
    pub(crate) fn sender(&self, connecting: TcpStream) -> Result<Sender, String> {
        let sender = Sender::new(connecting, self.pattern(), self.others);
        sender.map_err(|error| format!("no sender: {error}"))
    }

    /// Starts the receiver at the far end of a connection to send to.
    ///
    /// # Errors
    ///
    /// The errors of [`sender`](Self::sender).
    pub(crate) fn drain(&self, connected: TcpStream) -> Result<Drain, String> {
        let drain = Drain::new(connected, self.others);
        drain.map_err(|error| format!("no receiver: {error}"))
    }

    /// The bytes that the engine of a software NIC has moved to the receiver so far; `None` without a software NIC.
    ///
    /// # Errors
    ///
    /// One line that says why they are not known.
    pub(crate) fn simulated_dma(&self) -> Result<Option<u64>, String> {
        match self.joint {
            Joint::Wire => self.pair.right.dma_bytes().map(Some).map_err(|error| error.to_string()),
            Joint::Veth | Joint::VirtioNet => Ok(None),
        }
    }
}

impl Network for Testbed {
    fn load(&self) -> Load {
        self.load
    }

    fn kind(&self) -> &str {
        self.joint().name()
    }

    fn pattern(&self) -> Arc<Pattern> {
        Arc::clone(&self.pattern)
    }

    fn device(&self) -> &str {
        self.pair.right.device()
    }

    fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T, String> {
        self.pair.right.namespace().run(work).map_err(|error| error.to_string())
    }

    fn own_queue(&self) -> Result<OwnQueue<'_>, String> {
        if self.joint != Joint::Wire {
            let joint = self.joint.name();
            return Err(format!(
                "no NIC: {joint} has no queues that take a program's memory, the software NIC of the lab \
                 does (--lab)"
            ));
        }
        self.own_port()
    }

    fn connect(&self, queue: Option<&OwnQueue<'_>>) -> Result<Connection, String> {
        let (near, sender) = Testbed::connect(self, queue.map_or(SHARED, OwnQueue::number))?;
        Ok((near, Box::new(sender)))
    }

    fn own_port(&self) -> Result<OwnQueue<'_>, String> {
        self.queues.take()
    }

    fn placeholders(&self, own: &OwnQueue<'_>, cpu: usize) -> Placeholders {
        let queue = if self.joint == Joint::Wire { own.number() } else { 0 };
        Placeholders(vec![
            ("addr", self.pair.right.v4().to_string()),
            ("port", own.port().to_string()),
            ("iface", self.device().to_owned()),
            ("queue", queue.to_string()),
            ("cpu", cpu.to_string()),
        ])
    }

    fn namespace(&self) -> Option<&Namespace> {
        Some(self.connected().namespace())
    }

    fn reach(&self, own: &OwnQueue<'_>) -> Result<Option<Box<dyn FarEnd>>, String> {
        let Some(connecting) = Testbed::reach(self, own.number())? else { return Ok(None) };
        Ok(Some(Box::new(self.sender(connecting)?)))
    }

    fn arrives_by(&self, queue: Option<&OwnQueue<'_>>) -> Result<u32, String> {
        Ok(queue.map_or(SHARED, OwnQueue::number).into())
    }

    fn account(&self) -> Account<'_> {
        Account::new(self.napi_of_connected().to_vec(), vec![self])
    }

    fn copies_of_lent(&self) -> f64 {
        self.joint().copies_of_lent()
    }
}
