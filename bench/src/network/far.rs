//! The sending end of a measured connection: a thread of ours in another namespace, or a program on another
//! host.

use std::{net::TcpStream, sync::Arc};

use handoff_testbed::Namespace;

use super::{account::Account, pattern::Pattern, queues::OwnQueue, testbed::Load};
use crate::{peer::Placeholders, processor::Waits};

/// The end of a connection that sends. Dropping it ends the connection.
pub(crate) trait FarEnd {
    /// Makes the far end send until it is told to rest.
    ///
    /// # Errors
    ///
    /// If the far end cannot be told, in one line.
    fn begin(&self) -> Result<(), String>;

    /// Makes the far end continue to the pattern's end and rest there. Returns the bytes that it will have sent
    /// then since the beginning of the stream. Call this only after [`begin`](Self::begin).
    ///
    /// # Errors
    ///
    /// The errors of [`begin`](Self::begin).
    fn rest(&self) -> Result<u64, String>;

    /// The bytes sent that the receiving end's TCP has acknowledged.
    ///
    /// # Errors
    ///
    /// One line that says why they are not known.
    fn acknowledged(&self) -> Result<u64, String>;

    /// How long the far end's thread has run, and how long it was kept waiting so far; empty if it does not
    /// report that.
    fn waits(&self) -> Waits;

    /// Why the far end has ended; `None` if it has not.
    fn failure(&self) -> Option<String>;
}

/// The receiving end of a connection, and its far end.
pub(crate) type Connection = (TcpStream, Box<dyn FarEnd>);

/// A network whose receiving end is on this host.
pub(crate) trait Network {
    fn load(&self) -> Load;

    /// The kind of the receiving device.
    fn kind(&self) -> &str;

    fn pattern(&self) -> Arc<Pattern>;

    /// The name of the receiving device, for work [`inside`](Self::inside) its namespace.
    fn device(&self) -> &str;

    /// Runs `work` in the receiver's namespace.
    ///
    /// # Errors
    ///
    /// If the thread cannot enter the namespace, in one line.
    fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T, String>;

    /// Takes a queue for one user.
    ///
    /// # Errors
    ///
    /// One line that says why there is none.
    fn own_queue(&self) -> Result<OwnQueue<'_>, String>;

    /// Makes a connection whose packets come by this queue, or by the shared one for `None`.
    ///
    /// # Errors
    ///
    /// One line that says why there is none.
    fn connect(&self, queue: Option<&OwnQueue<'_>>) -> Result<Connection, String>;

    /// Takes a port for one program. If the NIC has queues, packets for the port come by a queue of their own.
    ///
    /// # Errors
    ///
    /// One line that says why there is none.
    fn own_port(&self) -> Result<OwnQueue<'_>, String>;

    /// The placeholders in the command of a program that receives at its own port.
    fn placeholders(&self, own: &OwnQueue<'_>, cpu: usize) -> Placeholders;

    /// The namespace that such a program runs in; `None` if it runs in ours.
    fn namespace(&self) -> Option<&Namespace>;

    /// Connects to the program that listens at this port; returns `None` if it does not listen yet.
    ///
    /// # Errors
    ///
    /// One line that says why there is no connection.
    fn reach(&self, own: &OwnQueue<'_>) -> Result<Option<Box<dyn FarEnd>>, String>;

    /// The NIC's queue that packets of such a connection come by.
    ///
    /// # Errors
    ///
    /// If they come by any queue, in one line.
    fn arrives_by(&self, queue: Option<&OwnQueue<'_>>) -> Result<u32, String>;

    /// The account of the receiving thread and of its NIC.
    fn account(&self) -> Account<'_>;

    /// How often the kernel copies each byte lent at the other end before it arrives.
    fn copies_of_lent(&self) -> f64;
}
