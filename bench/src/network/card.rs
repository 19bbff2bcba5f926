//! A NIC of this host as it is, receiving from another host.
//!
//! Contracts:
//!
//! 1. `handoff-nic` sets the NIC's queues aside. Everything is put back when this value is dropped; after a
//!    kill, `handoff nic restore` puts it back.
//! 2. A NIC that cannot set queues aside still receives. Only rows that need a queue are skipped, with the reason.
//! 3. Nobody listens at the ports for data except while a connection is made, so that programs can listen there.

use std::{
    io, iter,
    net::{IpAddr, SocketAddr, TcpListener},
    rc::Rc,
    sync::Arc,
};

use handoff_command::allow_list::{self, AllowList};
use handoff_command::{Failure, Stop};
use handoff_net::nic::failure;
use handoff_nic::{Directory, Error, ErrorKind, Flow, Nic, Plan, Prepared, Wanted};
use handoff_sys::hangup;
use handoff_testbed::Namespace;
use ipnet::IpNet;

use super::{
    account::Account,
    addresses,
    far::{Connection, FarEnd, Network},
    pattern::Pattern,
    queues::{OwnQueue, Queues},
    sending_host::SendingHost,
    testbed::Load,
};
use crate::peer::Placeholders;

/// The NIC, and the host that sends to it.
pub(crate) struct Card {
    // The host is dropped before the prepared queues: a queue is given back once nothing is steered to it.
    host: Rc<SendingHost>,
    prepared: Option<Prepared>,
    /// Why no queue could be set aside; `None` if one was.
    unfit: Option<String>,
    queues: Queues,
    address: IpAddr,
    /// The port for connections without a queue of their own.
    shared: u16,
    device: String,
    kind: String,
    load: Load,
    pattern: Arc<Pattern>,
}

impl Card {
    /// Sets aside a queue for each of the NIC's rows that want one, up to as many as the NIC has, and one for
    /// all other connections. Then waits for the sending host, which must be one of the addresses `from` if
    /// there are any. A line on stderr says how to make that host connect to `port`. Data comes to the ports
    /// behind it.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(crate) fn new(
        device: &str,
        port: u16,
        from: &[IpNet],
        own: impl Fn(Load) -> usize,
        pattern: &Arc<Pattern>,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let nic = Nic::look(device).map_err(failure)?;
        let address = usable(&nic)?;
        let load = Load { mtu: nic.mtu, gro: nic.hardware_gro.on };
        let own = own(load);
        let ports: Vec<u16> = (port..=u16::MAX).take(own + 2).collect();
        if ports.len() < own + 2 {
            let cause =
                format!("--port {port} leaves no ports behind it for data: take a lower one");
            return Err(Failure::Usage(cause));
        }
        // The ports for data are only tried: listeners come later, and nobody else may have the ports now.
        let listen = |&port: &u16| listen(address, port).map_err(Failure::NotPossible);
        let first = listen(&ports[0])?;
        ports[1..].iter().try_for_each(|port| listen(port).map(drop))?;
        let (prepared, unfit) = match prepare(&nic, address, &ports[1..]) {
            Ok(prepared) => (Some(prepared), None),
            Err(error) if error.kind() == ErrorKind::NotPossible => (None, Some(error.to_string())),
            Err(error) => return Err(failure(error)),
        };
        hangup::say(invitation(address, port));
        allow_list::warn((address, port).into(), from, "send");
        let host = SendingHost::accept(first, &AllowList::new(from), stop.flag())
            .map_err(Failure::Failed)?;
        let host = Rc::new(host.ok_or_else(|| stop.failure())?);
        let set_aside = prepared.as_ref().map_or(&[][..], Prepared::queues);
        // Without queues, programs still get ports.
        let no_queues = iter::repeat_n(0, if prepared.is_some() { 0 } else { ports.len() - 1 });
        let numbers = set_aside.iter().map(|&queue| queue as u16).chain(no_queues);
        // The first queue is for connections that need none of their own. A NIC with only one queue has none
        // for them.
        let alone = set_aside.len() == 1;
        let with_ports = numbers.zip(ports[1..].iter().copied());
        let queues = Queues::new(with_ports.skip(usize::from(!alone)));
        let shared = ports[if alone { ports.len() - 1 } else { 1 }];
        let kind = nic.driver.or(nic.kind).unwrap_or_else(|| nic.name.clone());
        let (device, pattern) = (device.to_owned(), Arc::clone(pattern));
        Ok(Self { host, prepared, unfit, queues, address, shared, device, kind, load, pattern })
    }

    /// The address of the host that sends.
    pub(crate) fn sent_from(&self) -> IpAddr {
        self.host.address()
    }

    /// Why nothing comes from the sending host any more; `None` if it still sends.
    pub(crate) fn lost(&self) -> Option<String> {
        self.host.lost()
    }

    /// Says goodbye to the sending host, and puts everything back. Returns a line for each setting that was left.
    ///
    /// # Errors
    ///
    /// What could not be put back, and how to do it.
    pub(crate) fn put_back(self) -> Result<Vec<String>, Failure> {
        self.host.leave();
        let Some(prepared) = self.prepared else { return Ok(Vec::new()) };
        Ok(prepared.undo().map_err(failure)?.left)
    }
}

/// The address of this NIC that another host can send to.
fn usable(nic: &Nic) -> Result<IpAddr, Failure> {
    let name = &nic.name;
    if !nic.up {
        let cause = format!("{name} is down: ip link set {name} up");
        return Err(Failure::NotPossible(cause));
    }
    let address = addresses::of_interface(name);
    let address = address.map_err(|error| {
        Failure::Failed(format!("the addresses of {name} are not known: {error}"))
    })?;
    address.ok_or_else(|| {
        Failure::NotPossible(format!("{name} has no address: ip address add ADDRESS dev {name}"))
    })
}

fn listen(address: IpAddr, port: u16) -> Result<TcpListener, String> {
    TcpListener::bind((address, port)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("port {port} of {address} is taken: choose others (--port)")
        }
        _ => format!("cannot listen at port {port} of {address}: {error}"),
    })
}

/// Sets a queue aside for each of these ports, or for the first of them if the NIC has fewer queues.
fn prepare(nic: &Nic, address: IpAddr, ports: &[u16]) -> Result<Prepared, Error> {
    let plan = |count: usize| Plan {
        queues: Wanted::Count(count as u32),
        flows: ports[..count]
            .iter()
            .enumerate()
            .map(|(place, &port)| (Flow::listening(SocketAddr::new(address, port)), place))
            .collect(),
        ..Plan::default()
    };
    let mut count = ports.len();
    while count > 1 && plan(count).queues(nic).is_err() {
        count -= 1;
    }
    Prepared::new(&nic.name, &plan(count), &Directory::default())
}

/// The line that tells the user what to do next.
fn invitation(address: IpAddr, port: u16) -> String {
    let target = match port {
        DEFAULT_PORT => address.to_string(),
        _ => SocketAddr::new(address, port).to_string(),
    };
    format!("waiting for the host that sends; run there: handoff bench recv --send-to {target}")
}

/// The port that the sending host connects to by default.
pub(crate) const DEFAULT_PORT: u16 = 4_000;

impl Network for Card {
    fn load(&self) -> Load {
        self.load
    }

    fn kind(&self) -> &str {
        &self.kind
    }

    fn pattern(&self) -> Arc<Pattern> {
        Arc::clone(&self.pattern)
    }

    fn device(&self) -> &str {
        &self.device
    }

    fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T, String> {
        Ok(work())
    }

    fn own_queue(&self) -> Result<OwnQueue<'_>, String> {
        self.unfit.clone().map_or_else(|| self.queues.take(), Err)
    }

    fn connect(&self, queue: Option<&OwnQueue<'_>>) -> Result<Connection, String> {
        let port = queue.map_or(self.shared, OwnQueue::port);
        self.host.connect(&listen(self.address, port)?)
    }

    fn own_port(&self) -> Result<OwnQueue<'_>, String> {
        self.queues.take()
    }

    fn placeholders(&self, own: &OwnQueue<'_>, cpu: usize) -> Placeholders {
        Placeholders(vec![
            ("addr", self.address.to_string()),
            ("port", own.port().to_string()),
            ("iface", self.device.clone()),
            ("queue", own.number().to_string()),
            ("cpu", cpu.to_string()),
        ])
    }

    fn namespace(&self) -> Option<&Namespace> {
        None
    }

    fn reach(&self, own: &OwnQueue<'_>) -> Result<Option<Box<dyn FarEnd>>, String> {
        self.host.reach(own.port())
    }

    fn arrives_by(&self, queue: Option<&OwnQueue<'_>>) -> Result<u32, String> {
        if let Some(unfit) = &self.unfit {
            return Err(unfit.clone());
        }
        let set_aside = self.prepared.as_ref().map_or(&[][..], Prepared::queues);
        match (queue, set_aside) {
            (Some(queue), _) => Ok(queue.number().into()),
            (None, [shared, _, ..]) => Ok(*shared),
            (None, _) => Err("the NIC has no queue to set aside for this row".to_owned()),
        }
    }

    fn account(&self) -> Account<'_> {
        Account::new([], Vec::new()).with_processors()
    }

    /// Only the kernel of the sending host could copy what it lends.
    fn copies_of_lent(&self) -> f64 {
        0.0
    }
}
