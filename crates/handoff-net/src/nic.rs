//! Receiving from a NIC without copying (`--nic`): the interface is prepared, a queue of it bound, and
//! connections are steered there, each by itself or all of a port. A device whose queues are leased from a
//! card (`handoff nic lease`) is ready: its host has prepared the card, and steers the connections.
//!
//! Contracts:
//! - everything at the interface is put back after the queue was released; if that failed, by `handoff nic
//!   restore`.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};

use handoff::{Driver, Region, RxBinding, RxQueue, Socket};
use handoff_command::failure::Failed;
use handoff_command::{Failure, output};
use handoff_nic::{Directory, Error, ErrorKind, Flow, Ip, Nic, Plan, Prepared, Steered, Wanted};
use socket2::{SockAddr, SockRef};

/// The most memory for the area, in bytes: enough that it cannot run out, within these.
const LEAST_AREA: usize = 16 << 20;
const MOST_AREA: usize = 512 << 20;
/// The initial area, beside the NIC's own reserve.
const FIRST: usize = 2 << 20;

/// Packets for a listener.
pub fn arriving_at(address: SocketAddr) -> Vec<Flow> {
    match address.ip() {
        // One socket serves both.
        IpAddr::V6(ip) if ip.is_unspecified() => {
            [Ip::V4, Ip::V6].map(|ip| Flow::port(ip, address.port())).to_vec()
        }
        _ => vec![Flow::listening(address)],
    }
}

/// An interface that connections arrive at.
pub enum Card {
    /// Ours to change.
    Prepared(Prepared),
    /// Of a container, with a leased queue.
    Leased {
        /// The device.
        name: String,
        /// The leased queue.
        queue: u32,
    },
}

impl Card {
    /// Its name, and the number of the queue to bind among those set aside.
    fn queue(&self, number: usize) -> (&str, u32) {
        match self {
            Self::Prepared(prepared) => (prepared.name(), prepared.queues()[number]),
            Self::Leased { name, queue } => (name, *queue),
        }
    }
}

/// Sets so many queues of the interface aside, switches hardware GRO on if possible, and steers these flows to the
/// first of them. A leased queue is taken as it is.
///
/// # Errors
///
/// [`Failure::NotPossible`] with what stands in the way.
pub fn prepare(interface: &str, queues: u32, flows: Vec<Flow>) -> Result<Card, Failure> {
    let flows = flows.into_iter().map(|flow| (flow, 0)).collect();
    let nic = Nic::look(interface).map_err(failure)?;
    let leased = nic.leased();
    if let Some(queue) = leased.iter().find(|queue| queue.bound.is_none()) {
        if queues > 1 {
            return Err(Failure::not_possible(format!(
                "{interface} has queues that are leased, whose connections the card's host leads: receive from one \
                 (--queues 1)"
            )));
        }
        if leased.len() > 1 {
            output::say(format_args!(
                "note: {interface} has leased {} queues, of which this command takes queue {}: connections that the \
                 card leads to the others are copied",
                leased.len(),
                queue.id
            ));
        }
        return Ok(Card::Leased { name: nic.name.clone(), queue: queue.id });
    }
    if !leased.is_empty() {
        return Err(Failure::not_possible(format!(
            "{interface}: all queues that it has leased are bound by programs: end one, or lease more"
        )));
    }
    let hardware_gro = nic.hardware_gro;
    if !hardware_gro.on && !hardware_gro.switchable {
        output::say(format_args!(
            "note: {interface}: its driver has no hardware GRO, which would spare most of what receiving costs"
        ));
    }
    let hardware_gro = hardware_gro.switchable;
    let queues = Wanted::Count(queues);
    let plan = Plan { queues, flows, hardware_gro, ..Plan::default() };
    Ok(Card::Prepared(Prepared::new(interface, &plan, &Directory::default()).map_err(failure)?))
}

/// Puts everything back; `ended` is how the rest went, which counts for more.
///
/// # Errors
///
/// Those of the rest, or what could not be put back.
pub fn put_back(card: Card, ended: Result<(), Failure>) -> Result<(), Failure> {
    let Card::Prepared(prepared) = card else { return ended };
    match prepared.undo() {
        Ok(undone) => {
            for left in undone.left {
                output::say(format_args!("note: {}: left as it is: {left}", undone.interface));
            }
            ended
        }
        Err(error) if ended.is_ok() => Err(failure(error)),
        Err(error) => {
            output::say(format_args!("note: {error}"));
            ended
        }
    }
}

/// Binds the queue of this number to a driver, with an area for so many connections from `region`; it begins with
/// less if it can grow.
///
/// # Errors
///
/// [`Failure::NotPossible`] with the reason.
pub fn bind(
    driver: &Driver,
    card: &Card,
    number: usize,
    connections: usize,
    region: impl FnOnce(usize) -> Result<Region, Failure>,
) -> Result<RxQueue, Failure> {
    const BINDING: &str = "binding an rx queue";
    let (name, queue) = card.queue(number);
    let binding = RxBinding::new(name, queue).failed(BINDING)?;
    let binding = binding.grows_from(binding.area(0) + FIRST);
    let area = region(binding.area(connections).clamp(LEAST_AREA, MOST_AREA))?;
    driver.rx_queue(area, &binding).failed(BINDING)
}

/// Steers connections to the queues, as long as it lives.
pub struct Rules<'a> {
    card: &'a Card,
    steered: RefCell<Vec<Steered>>,
}

impl<'a> Rules<'a> {
    /// None yet.
    pub fn of(card: &'a Card) -> Self {
        Self { card, steered: RefCell::default() }
    }

    /// Steers a connection to the queue of this number.
    ///
    /// # Errors
    ///
    /// When the NIC has no room for the rule, or another rule steers it elsewhere.
    pub fn steer(&self, connection: &Socket, number: usize) -> Result<(), Failure> {
        const FINDING: &str = "finding the addresses of a connection";
        let connection = SockRef::from(connection);
        let internet = |address: SockAddr| {
            address.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
        };
        let ours = connection.local_addr().and_then(internet).failed(FINDING)?;
        let theirs = connection.peer_addr().and_then(internet).failed(FINDING)?;
        self.steer_flow(Flow::connection(ours, theirs).map_err(failure)?, number)
    }

    /// Steers everything that a listener accepts to the first queue, from its first packet on.
    ///
    /// # Errors
    ///
    /// As [`steer`](Self::steer).
    pub fn steer_arriving(&self, at: SocketAddr) -> Result<(), Failure> {
        arriving_at(at).into_iter().try_for_each(|flow| self.steer_flow(flow, 0))
    }

    fn steer_flow(&self, flow: Flow, number: usize) -> Result<(), Failure> {
        if let Card::Prepared(prepared) = self.card {
            let steered = prepared.steer(flow, prepared.queues()[number]).map_err(failure)?;
            self.steered.borrow_mut().push(steered);
        }
        Ok(())
    }
}

/// The failure of a subcommand by an error of the library.
pub fn failure(error: Error) -> Failure {
    let cause = error.to_string();
    match error.kind() {
        ErrorKind::Usage => Failure::Usage(cause),
        ErrorKind::NotPossible => Failure::NotPossible(cause),
        _ => Failure::Failed(cause),
    }
}
