//! The sending end of a measured connection: a thread of ours in another namespace, or a program on another
//! host.

use std::{net::TcpStream, sync::Arc};

use handoff_testbed::Namespace;

use super::{account::Account, bed::Load, pattern::Pattern, queues::OwnQueue};
use crate::{peer::Placeholders, processor::Waits};

/// The end of a connection that sends. Dropping it ends the connection.
pub(crate) trait FarEnd {
    /// Makes it send until it is told to rest.
    ///
    /// # Errors
    ///
    /// If it cannot be told, in one line.
    fn begin(&self) -> Result<(), String>;

    /// Makes it continue to the pattern's end and rest there; returns how much it will have sent then, from
    /// the beginning of the stream. Only after it was told to begin.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    fn rest(&self) -> Result<u64, String>;

    /// How much of what it sent the receiving end's TCP has acknowledged.
    ///
    /// # Errors
    ///
    /// Why that is not known, in one line.
    fn acknowledged(&self) -> Result<u64, String>;

    /// How long its thread ran and was kept waiting so far. Nothing if it does not report that.
    fn waits(&self) -> Waits;

    /// Why it has ended, if it has.
    fn failure(&self) -> Option<String>;
}

/// A connection: the receiving end, and the other.
pub(crate) type Connection = (TcpStream, Box<dyn FarEnd>);

/// A network with the receiving end here.
pub(crate) trait Network {
    fn load(&self) -> Load;

    /// The kind of the receiving device.
    fn kind(&self) -> &str;

    fn pattern(&self) -> Arc<Pattern>;

    /// The name of the receiving device, for those [`inside`](Self::inside).
    fn device(&self) -> &str;

    /// Runs something in the receiver's namespace.
    ///
    /// # Errors
    ///
    /// If the thread cannot go there, in one line.
    fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T, String>;

    /// A queue for one user.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    fn own_queue(&self) -> Result<OwnQueue<'_>, String>;

    /// A new connection, whose packets come by this queue, or by the common one.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    fn connect(&self, queue: Option<&OwnQueue<'_>>) -> Result<Connection, String>;

    /// A port for one program; if the NIC has queues, with the queue that its packets come by.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    fn own_port(&self) -> Result<OwnQueue<'_>, String>;

    /// What to tell a program that receives at this port of its own.
    fn placeholders(&self, own: &OwnQueue<'_>, cpu: usize) -> Placeholders;

    /// Where such a program runs, if not where we do.
    fn namespace(&self) -> Option<&Namespace>;

    /// A new connection to the program that listens at this port; none if it does not yet.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    fn reach(&self, own: &OwnQueue<'_>) -> Result<Option<Box<dyn FarEnd>>, String>;

    /// The queue for packets of such a connection.
    ///
    /// # Errors
    ///
    /// If they come by any queue, in one line.
    fn arrives_by(&self, queue: Option<&OwnQueue<'_>>) -> Result<u32, String>;

    /// The costs of the receiving thread, and its NIC.
    fn account(&self) -> Account<'_>;

    /// How often the kernel copies each byte lent at the other end before it arrives.
    fn copies_of_lent(&self) -> f64;
}
