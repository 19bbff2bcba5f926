//! Another program that sends messages, as an engine of the measuring frame; with one that receives them, if
//! it needs that.
//!
//! What it sent is by its own figure. Its costs are those of all its processes, from their start to their end.

use handoff_testbed::instructions;

use super::job::Job;
use crate::{
    measure::{Engine, Slot, Tally},
    network::{account::Account, bed::Bed, far::Network as _, queues::OwnQueue},
    peer::{Affinity, Figure, Peer, Receiver},
    processor::Waits,
    tasks,
};

/// What is started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending<'a> {
    pub(super) command: &'a str,
    pub(super) figure: &'a Figure,
    /// The command that receives.
    pub(super) receiver: Option<&'a str>,
    /// The bench's processor.
    pub(super) cpu: usize,
}

pub(super) struct Program<'a> {
    peer: Peer,
    account: Account<'a>,
    /// Of a message.
    bytes: u64,
    /// Its port is nobody else's meanwhile.
    _own: OwnQueue<'a>,
}

impl<'a> Program<'a> {
    /// Starts what receives.
    ///
    /// # Errors
    ///
    /// If it does not start, in one line.
    pub(super) fn new(bed: &'a Bed, job: Job, sending: Sending<'_>) -> Result<Self, String> {
        let Sending { command, figure, receiver, cpu } = sending;
        let own = bed.own_port()?;
        let mut placeholders = bed.placeholders(&own, cpu);
        placeholders.0.extend([
            ("from_addr", bed.connecting().v4().to_string()),
            ("bytes", job.bytes.to_string()),
            ("depth", job.buffers().to_string()),
            ("sockets", job.sockets.to_string()),
        ]);
        // The kernel's RDS listens for it, or it listens itself: nobody knows.
        let namespace = bed.connected().namespace();
        let processors = Affinity::Only(bed.others());
        let receive =
            |command| Receiver::start(&placeholders.fill(command), namespace, None, processors);
        let receiver = receiver.map(receive).transpose()?;
        let peer = Peer {
            command: command.to_owned(),
            figure: figure.clone(),
            placeholders,
            namespace: bed.connecting().namespace().clone(),
            receiver,
        };
        // Nobody knows whether the kernel's RDS works for it, as for our rows of that engine.
        let threads = bed.napi_of_connecting().iter().cloned().chain(tasks::workers());
        let account = Account::new(threads, vec![bed]).of_ended_programs();
        Ok(Self { peer, account, bytes: job.bytes as u64, _own: own })
    }
}

impl Engine for Program<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let begun = self.account.begin(Waits::default())?;
        let sent = self.peer.run(slot)?;
        let spent = self.account.end(&begun, Waits::default)?;
        // A rate is of the time for which it ran.
        let time = if instructions::counting() { spent.time } else { sent.time };
        let Tally { bytes, .. } = sent;
        Ok(Tally { bytes, operations: Some(bytes / self.bytes), time, ..spent })
    }

    fn warms_up(&self) -> bool {
        self.peer.warms_up()
    }

    fn counts_bytes(&self) -> bool {
        self.peer.counts_bytes()
    }
}
