//! Where pieces go that were read here.

use std::cell::Cell;
use std::os::fd::OwnedFd;

use handoff::{File, Socket, Tally};
use handoff_command::Failure;
use handoff_command::failure::Failed;

use crate::destination::Destination;
use crate::job::Job;
use crate::order;
use crate::ranged::Ranged;

/// Where pieces go.
pub(crate) enum Outlet {
    /// Connections; the place of each piece goes before it unless `raw`.
    Sockets { streams: Vec<Stream>, raw: bool },
    /// A file.
    File(Ranged),
    /// In order.
    Stream { file: File, name: String },
}

impl Outlet {
    /// The file of a copy.
    ///
    /// # Errors
    ///
    /// When the driver cannot take it.
    pub(crate) fn file(job: &Job<'_>, destination: &Destination) -> Result<Self, Failure> {
        let file = destination.file().try_clone().failed("attaching a file")?;
        let direct =
            if job.order.args.direct { job.direct(destination.open_direct()) } else { None };
        let name = job.order.destination.to_string();
        Ranged::new(&job.driver, file, direct, name).map(Self::File)
    }

    /// What is written in order.
    ///
    /// # Errors
    ///
    /// When the driver cannot take it.
    pub(crate) fn stream(job: &Job<'_>, file: impl Into<OwnedFd>) -> Result<Self, Failure> {
        let file = job.driver.file(file).failed("attaching a file")?;
        Ok(Self::Stream { file, name: order::name(&job.order.destination) })
    }
}

/// A connection, and the number of accepted bytes that are not back.
pub(crate) struct Stream {
    pub(crate) socket: Socket,
    pub(crate) on_loan: Cell<usize>,
    /// It is of TLS.
    pub(crate) ciphered: bool,
    /// What was sent of its handshake.
    before: Tally,
}

impl Stream {
    pub(crate) fn new(socket: Socket, ciphered: bool) -> Self {
        let before = if ciphered { socket.send_stats().returned } else { Tally::default() };
        Self { socket, on_loan: Cell::new(0), ciphered, before }
    }

    /// What was sent of the transfer, and is back.
    pub(crate) fn sent(&self) -> Tally {
        let all = self.socket.send_stats().returned;
        Tally {
            zero_copy: all.zero_copy - self.before.zero_copy,
            copied: all.copied - self.before.copied,
            ciphered: all.ciphered - self.before.ciphered,
            unknown: all.unknown - self.before.unknown,
        }
    }
}
