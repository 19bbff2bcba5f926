//! Receiving from a NIC without copying (`--nic`): the interface is prepared, a queue of it bound, and
//! each connection led there before its bytes come.
//!
//! Contracts:
//! - the first words of a peer arrive as usual: they are read before the connection is led;
//! - everything at the interface is put back after the queue was let go, and by `handoff nic restore`
//!   where that failed.

use std::cell::RefCell;
use std::net::TcpStream;

use handoff::{RxBinding, RxQueue};
use handoff_nic::{Directory, Flow, Plan, Prepared, Steered};

use super::job::{Failed, Job};
use crate::Failure;

/// Memory for the area, in bytes: what cannot run dry, within these.
const LEAST_AREA: usize = 16 << 20;
const MOST_AREA: usize = 512 << 20;

/// Sets a queue of the interface aside.
///
/// # Errors
///
/// [`Failure::NotPossible`] with what stands in the way.
pub(super) fn prepare(interface: &str) -> Result<Prepared, Failure> {
    Ok(Prepared::new(interface, &Plan::default(), &Directory::default())?)
}

/// Puts everything back; `ended` is how the copy did, which counts for more.
///
/// # Errors
///
/// Those of the copy, or what could not be put back.
pub(super) fn put_back(prepared: Prepared, ended: Result<(), Failure>) -> Result<(), Failure> {
    match prepared.undo() {
        Ok(undone) => {
            for left in undone.left {
                eprintln!("handoff: note: {}: left as it is: {left}", undone.interface);
            }
            ended
        }
        Err(error) if ended.is_ok() => Err(error.into()),
        Err(error) => {
            eprintln!("handoff: note: {error}");
            ended
        }
    }
}

/// A queue of the interface, bound to the copy's driver.
pub(super) struct Nic<'a> {
    prepared: &'a Prepared,
    pub(super) queue: RxQueue,
    steered: RefCell<Vec<Steered>>,
}

impl<'a> Nic<'a> {
    /// Binds the queue, with an area for so many connections.
    ///
    /// # Errors
    ///
    /// [`Failure::NotPossible`] with the reason.
    pub(super) fn bind(
        job: &Job<'_>,
        prepared: &'a Prepared,
        connections: usize,
    ) -> Result<Self, Failure> {
        const BINDING: &str = "binding an rx queue";
        let binding = RxBinding::new(prepared.name(), prepared.queues()[0]).failed(BINDING)?;
        let area = job.region(binding.area(connections).clamp(LEAST_AREA, MOST_AREA))?;
        let queue = job.driver.rx_queue(area, &binding).failed(BINDING)?;
        Ok(Self { prepared, queue, steered: RefCell::default() })
    }

    /// Leads a connection to the queue.
    ///
    /// # Errors
    ///
    /// When the NIC has no room for the rule, or another rule leads it elsewhere.
    pub(super) fn lead(&self, connection: &TcpStream) -> Result<(), Failure> {
        let ends = connection.local_addr().and_then(|ours| Ok((ours, connection.peer_addr()?)));
        let (ours, theirs) = ends.failed("finding the addresses of a connection")?;
        let flow = Flow::connection(ours, theirs)?;
        let steered = self.prepared.steer(flow, self.prepared.queues()[0])?;
        self.steered.borrow_mut().push(steered);
        Ok(())
    }
}
