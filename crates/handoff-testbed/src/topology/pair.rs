//! Two namespaces joined by a pair of devices: two hosts and a cable.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};

use super::{
    Namespace, Netem, redirect,
    rtnetlink::{NewLink, Rtnetlink},
    virtio::{self, Moved},
};
use crate::driver::load;
use crate::error::TopologyError;
use crate::error::asked;

/// By the number of the cable: a host between two others has one end of each.
const DEVICES: [&str; 2] = ["cable0", "cable1"];
/// How long it may take until packets pass.
const TIMEOUT: Duration = Duration::from_secs(20);
/// After this time a datagram counts as lost.
const LOST: Duration = Duration::from_millis(10);

/// One of the two ends of a [`Pair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first host.
    Left,
    /// The second host.
    Right,
}

impl Side {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Left => 1,
            Self::Right => 2,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// One end of one cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plug {
    /// 0, or 1 for the cable that leads onward.
    cable: u8,
    /// Which addresses it has.
    network: u16,
    side: Side,
}

impl Plug {
    fn other(self) -> Self {
        Self { side: self.side.other(), ..self }
    }

    fn device(self) -> &'static str {
        DEVICES[usize::from(self.cable)]
    }

    fn v4(self) -> Ipv4Addr {
        let [high, low] = self.network.to_be_bytes();
        Ipv4Addr::new(10, high, low, self.side.number())
    }

    fn v6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x78, self.network, 0, 0, 0, 0, self.side.number().into())
    }

    fn mac(self) -> [u8; 6] {
        [0x02, 0, 0, self.cable, 0x78, self.side.number()]
    }
}

/// A host at one end of a [`Pair`].
#[derive(Debug, Clone)]
pub struct PairEnd {
    namespace: Namespace,
    plug: Plug,
    mac: [u8; 6],
    /// Puts the device back if it is one of the machine's.
    _moved: Option<Arc<Moved>>,
}

impl PairEnd {
    /// The host's namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The host's IPv4 address.
    pub fn v4(&self) -> Ipv4Addr {
        self.plug.v4()
    }

    /// The host's IPv6 address, usable from the start.
    pub fn v6(&self) -> Ipv6Addr {
        self.plug.v6()
    }

    /// The device's name in the host's namespace.
    pub fn device(&self) -> &'static str {
        self.plug.device()
    }

    /// Delays or drops what this host sends.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] where the kernel has no netem.
    pub fn set_netem(&self, netem: &Netem) -> Result<(), TopologyError> {
        self.namespace.run(|| netem.apply(self.device()))?
    }

    /// Makes TCP connections over IPv4 from the other host to `port` arrive at `other`, as if nothing
    /// listened at `port`.
    ///
    /// # Errors
    ///
    /// If the kernel has no classifiers that change packets, or there is no tc(8).
    pub fn redirect(&self, port: u16, other: u16) -> Result<(), TopologyError> {
        redirect::apply(self, port, other)
    }

    /// Bytes that the DMA engine of a software NIC has moved to this end ([`Pair::wire`]).
    ///
    /// # Errors
    ///
    /// The error of ethtool(8); other devices have no such count.
    pub fn dma_bytes(&self) -> Result<u64, TopologyError> {
        let counters = self.ethtool("-S", &[])?;
        let count = counters.lines().find_map(|line| line.trim().strip_prefix("dma_bytes: "));
        count.and_then(|count| count.parse().ok()).ok_or_else(|| {
            let action = format!("count what the NIC {} has moved", self.device());
            asked(action)(io::Error::other("ethtool -S tells nothing of dma_bytes"))
        })
    }

    /// What ethtool(8) prints for a flag, this device and these arguments.
    ///
    /// # Errors
    ///
    /// The error of ethtool(8).
    pub fn ethtool(&self, flag: &str, arguments: &[&str]) -> Result<String, TopologyError> {
        let failed = |error| asked(format!("run ethtool {flag} {}", self.device()))(error);
        let mut ethtool = Command::new("ethtool");
        ethtool.args([flag, self.device()]).args(arguments);
        let output = self.namespace.attach(&mut ethtool).output().map_err(failed)?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            return Err(failed(io::Error::other(told.trim().to_owned())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns once a datagram of each family has arrived at the other end.
    fn reaches(&self, far: &Self) -> Result<(), TopologyError> {
        let deadline = Instant::now() + TIMEOUT;
        let pass = |from: IpAddr, to: IpAddr| -> Result<(), TopologyError> {
            let bind = |end: &Self, address| {
                let bound = end.namespace.run(|| UdpSocket::bind((address, 0)))?;
                bound.map_err(asked(format!("bind a socket to {address}")))
            };
            let (near, far) = (bind(self, from)?, bind(far, to)?);
            let attempt = || -> io::Result<bool> {
                far.set_read_timeout(Some(LOST))?;
                near.send_to(b"?", far.local_addr()?)?;
                match far.recv(&mut [0]) {
                    // A call with a time-out is not restarted after a signal.
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::Interrupted
                        ) =>
                    {
                        Ok(false)
                    }
                    received => received.map(|_| true),
                }
            };
            let action = || format!("pass a datagram from {from} to {to}");
            while !attempt().map_err(asked(action()))? {
                if Instant::now() > deadline {
                    return Err(asked(action())(io::Error::from(ErrorKind::TimedOut)));
                }
            }
            Ok(())
        };
        pass(self.v4().into(), far.v4().into())?;
        pass(self.v6().into(), far.v6().into())
    }

    /// Runs a script of the shell on the host, with the host's devices in `/sys`; returns what it printed.
    ///
    /// # Errors
    ///
    /// What the script said, in one line.
    pub fn shell(&self, script: &str) -> Result<String, String> {
        let mut shell = Command::new("unshare");
        let whole = format!("mount -t sysfs sysfs /sys\n{script}");
        let output = self.namespace.attach(shell.args(["--mount", "sh", "-euc", &whole])).output();
        let output = output.map_err(|error| format!("unshare(1) cannot be run: {error}"))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            return Err(format!("{script}: {stderr}"));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Two hosts that reach each other, and nobody else, by IPv4 and IPv6.
///
/// ```no_run
/// use handoff_testbed::{Pair, TopologyError};
///
/// # fn main() -> Result<(), TopologyError> {
/// let pair = Pair::new(1500)?;
/// let (near, far) = pair.connection()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Pair {
    /// The first host.
    pub left: PairEnd,
    /// The second host.
    pub right: PairEnd,
    kind: Kind,
}

/// How two hosts are joined.
#[derive(Debug, Clone)]
enum Kind {
    /// By devices made for it.
    Made(InfoKind),
    /// By devices of the machine.
    VirtioNet,
}

impl Pair {
    /// Joins two new namespaces by a cable with the given MTU (bytes, 1,280 to 65,535: IPv6 needs the
    /// lower bound). Neighbours are permanent, so the first packet does not wait for resolution. When
    /// this returns, packets pass both ways: a kernel notices a new cable only some time after the
    /// devices came up, and drops packets until then.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] where the kernel has no veth.
    pub fn new(mtu: u32) -> Result<Self, TopologyError> {
        Self::of(InfoKind::Veth, mtu)
    }

    /// As [`Pair::new`], joined by software NICs (`kmod/wire`), which have rx queues, header split
    /// and zero-copy receive. Lent memory is not copied before the simulated DMA reads it.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] where the kernel has no such module.
    pub fn wire(mtu: u32) -> Result<Self, TopologyError> {
        // The kernel does not load it by itself.
        if !Path::new("/sys/module/wire").exists() {
            load("wire", &[])?;
        }
        Self::of(InfoKind::Other("wire".to_owned()), mtu)
    }

    /// As [`Pair::new`], joined by virtio-net devices that QEMU has joined. They are moved there from
    /// the calling thread's namespace, and put back when the last clone of each end is dropped. They
    /// offload nothing, since QEMU's hub carries plain frames: the kernel cuts packets into frames, and
    /// copies them, before the devices get them.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] if this machine has no free pair of this kind: the lab's guest has
    /// as many as the guest's machine says.
    pub fn virtio(mtu: u32) -> Result<Self, TopologyError> {
        Self::joined(Namespace::new()?, 0, Kind::VirtioNet, mtu)
    }

    fn of(kind: InfoKind, mtu: u32) -> Result<Self, TopologyError> {
        Self::joined(Namespace::new()?, 0, Kind::Made(kind), mtu)
    }

    /// Joins the second host of this pair to a third by a cable of the same kind; that host is the first
    /// of the returned pair. Packets of one cable do not pass to the other. Works once.
    ///
    /// # Errors
    ///
    /// The kernel's error, also if such a cable exists already.
    pub fn onward(&self, mtu: u32) -> Result<Self, TopologyError> {
        Self::joined(self.right.namespace.clone(), 1, self.kind.clone(), mtu)
    }

    /// Connects the left host to the right one by TCP; returns their ends.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn connection(&self) -> Result<(TcpStream, TcpStream), TopologyError> {
        let failed = |error: io::Error| asked("connect the two hosts")(error);
        let listen = || TcpListener::bind((self.right.v4(), 0));
        let listener = self.right.namespace.run(listen)?.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let left = self.left.namespace.run(|| TcpStream::connect(address))?.map_err(failed)?;
        let (right, _) = listener.accept().map_err(failed)?;
        Ok((left, right))
    }

    /// Joins a host to a new one.
    fn joined(host: Namespace, cable: u8, kind: Kind, mtu: u32) -> Result<Self, TopologyError> {
        let hosts = [host, Namespace::new()?];
        let network = new_network();
        let plugs = [Side::Left, Side::Right].map(|side| Plug { cable, network, side });
        let devices = match &kind {
            Kind::Made(kind) => {
                hosts[0].run(|| join(plugs, &hosts[1], kind.clone(), mtu))??;
                plugs.map(|plug| (None, plug.mac()))
            }
            Kind::VirtioNet => {
                let ends = [(&hosts[0], Side::Left), (&hosts[1], Side::Right)];
                let taken = virtio::take(ends, plugs[0].device())?;
                for (host, plug) in hosts.iter().zip(plugs) {
                    let mtu = vec![LinkAttribute::Mtu(mtu)];
                    host.run(|| Rtnetlink::open()?.change(plug.device(), mtu))??;
                }
                taken.map(|(moved, mac)| (Some(Arc::new(moved)), mac))
            }
        };
        let [left, right] = hosts;
        let end = |namespace, plug, (_moved, mac)| PairEnd { namespace, plug, mac, _moved };
        let [at_left, at_right] = devices;
        let pair = Self {
            left: end(left, plugs[0], at_left),
            right: end(right, plugs[1], at_right),
            kind,
        };
        pair.start()
    }

    /// Gives the devices addresses, and returns when packets pass.
    fn start(self) -> Result<Self, TopologyError> {
        for (end, far) in [(&self.left, &self.right), (&self.right, &self.left)] {
            end.namespace.run(|| configure(end.plug, far.mac))??;
        }
        self.left.reaches(&self.right)?;
        self.right.reaches(&self.left)?;
        Ok(self)
    }
}

/// The number of a network that no other pair has, nor had lately: parts of the kernel know hosts by their
/// addresses alone, whatever namespace they are in, and do not forget them. RDS is one.
fn new_network() -> u16 {
    static MADE: AtomicU16 = AtomicU16::new(0);
    // Pairs of a process lie far from those of its neighbours.
    const APART: u16 = 0x9e37;
    (std::process::id() as u16)
        .wrapping_add(MADE.fetch_add(1, Ordering::Relaxed).wrapping_mul(APART))
}

/// Makes both ends of a cable, the first in the calling thread's namespace.
fn join(plugs: [Plug; 2], far: &Namespace, kind: InfoKind, mtu: u32) -> Result<(), TopologyError> {
    let end =
        |plug: Plug| vec![LinkAttribute::Mtu(mtu), LinkAttribute::Address(plug.mac().to_vec())];
    let mut peer = LinkMessage::default();
    peer.attributes = end(plugs[1]);
    peer.attributes.push(LinkAttribute::IfName(plugs[1].device().into()));
    peer.attributes.push(LinkAttribute::NetNsFd(far.as_fd().as_raw_fd()));
    Rtnetlink::open()?.add_link(NewLink {
        name: plugs[0].device(),
        kind,
        // Both kinds take their peer as the same attribute.
        data: Some(LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)))),
        attributes: end(plugs[0]),
    })
}

fn configure(near: Plug, far_mac: [u8; 6]) -> Result<(), TopologyError> {
    let mut kernel = Rtnetlink::open()?;
    let (far, device) = (near.other(), near.device());
    kernel.set_up(device)?;
    for (own, neighbour, prefix_len) in [
        (IpAddr::V4(near.v4()), IpAddr::V4(far.v4()), 24),
        (IpAddr::V6(near.v6()), IpAddr::V6(far.v6()), 64),
    ] {
        kernel.add_address(device, own, prefix_len)?;
        kernel.add_neighbour(device, neighbour, far_mac)?;
    }
    Ok(())
}
