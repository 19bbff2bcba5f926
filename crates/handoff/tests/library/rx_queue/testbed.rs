//! Two hosts joined by the lab's software NIC, whose receiving end is ready for rx queues.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;

use handoff::{Driver, RxBinding, RxQueue};
use handoff_testbed::helpers::bytes_at;
use handoff_testbed::{Pair, PairEnd};

/// Rx queues to which connections to [`port`] are steered; the others belong to the host.
pub(crate) const QUEUES: [u32; 2] = [3, 2];

/// What goes to each of [`QUEUES`].
pub(crate) fn port(queue: u32) -> u16 {
    4_000 + queue as u16
}

pub(crate) struct Testbed {
    pub(crate) pair: Pair,
}

impl Testbed {
    pub(crate) fn new(mtu: u32) -> Self {
        let testbed = Self { pair: Pair::wire(mtu).expect("a pair of NICs") };
        let device = testbed.pair.right.device();
        run(&testbed.pair.right, &format!("ethtool -G {device} tcp-data-split on"));
        for queue in QUEUES {
            for family in ["tcp4", "tcp6"] {
                let rule = format!("flow-type {family} dst-port {} action {queue}", port(queue));
                run(&testbed.pair.right, &format!("ethtool -N {device} {rule}"));
            }
        }
        testbed
    }

    /// Runs a command at the receiving end.
    pub(crate) fn run(&self, command: &str) {
        run(&self.pair.right, command);
    }

    /// Sets a fault of the NIC for what arrives at the receiving end.
    pub(crate) fn fault(&self, fault: &str, value: u32) {
        let device = self.pair.right.device();
        run(&self.pair.right, &format!("echo {value} > /sys/class/net/{device}/wire/{fault}"));
    }

    /// Makes the NIC deliver frames whole.
    pub(crate) fn deliver_whole(&self) {
        run(&self.pair.right, &format!("ethtool -K {} rx-gro-hw on", self.pair.right.device()));
    }

    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        run(&self.pair.right, &format!("ethtool -S {}", self.pair.right.device()))
            .lines()
            .filter_map(|line| line.trim().split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    /// Binds a queue of the receiving NIC.
    pub(crate) fn bind(
        &self,
        driver: &Driver,
        queue: u32,
        area: handoff::Region,
        chunk: Option<usize>,
    ) -> handoff::Result<RxQueue> {
        let inside = || {
            let binding = RxBinding::new(self.pair.right.device(), queue)?;
            driver.rx_queue(area, &chunk.map_or(binding, |bytes| binding.chunk(bytes)))
        };
        self.pair.right.namespace().run(inside).expect("enters")
    }

    /// A queue of the receiving NIC, not bound.
    pub(crate) fn binding(&self, queue: u32) -> RxBinding {
        let look = || RxBinding::new(self.pair.right.device(), queue);
        self.pair.right.namespace().run(look).expect("enters").expect("is there")
    }

    pub(crate) fn listen(&self, address: impl Into<IpAddr>, port: u16) -> TcpListener {
        let address = (address.into(), port);
        let bound = self.pair.right.namespace().run(|| TcpListener::bind(address));
        bound.expect("enters").expect("binds")
    }

    pub(crate) fn connect(&self, address: impl Into<IpAddr>, port: u16) -> TcpStream {
        let address = (address.into(), port);
        let connected = self.pair.left.namespace().run(|| TcpStream::connect(address));
        connected.expect("enters").expect("connects")
    }

    /// A connection whose packets come by this queue: the sender's end, and the receiver's.
    pub(crate) fn stream(&self, address: impl Into<IpAddr>, queue: u32) -> (TcpStream, TcpStream) {
        let address = address.into();
        let listener = self.listen(address, port(queue));
        let left = self.connect(address, port(queue));
        (left, listener.accept().expect("accepts").0)
    }
}

/// Runs a command at this end, with its interfaces in /sys, and returns what it printed.
pub(crate) fn run(end: &PairEnd, script: &str) -> String {
    end.shell(script).unwrap_or_else(|reason| panic!("{reason}"))
}

pub(crate) fn stream_of(bytes: usize) -> Vec<u8> {
    bytes_at(0, bytes)
}

/// Sends so much in a thread of its own, and ends the stream.
pub(crate) fn send(mut socket: TcpStream, bytes: usize) -> JoinHandle<()> {
    std::thread::spawn(move || {
        socket.write_all(&stream_of(bytes)).expect("sends");
        socket.shutdown(Shutdown::Write).expect("ends");
    })
}
