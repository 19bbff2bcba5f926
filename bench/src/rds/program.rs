//! Another program that sends messages, as an engine of the measuring frame; and a program that receives them,
//! if the sender needs one.
//!
//! The sender's own figure says how much it sent. Its costs are those of all its processes, from their start to
//! their end.

use handoff_testbed::instructions;

use super::job::Job;
use crate::{
    measure::{Engine, Slot, Tally},
    network::{account::Account, far::Network as _, queues::OwnQueue, testbed::Testbed},
    peer::{Affinity, Figure, Peer, Receiver},
    processor::Waits,
    tasks,
};

/// What the bench starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending<'a> {
    pub(super) command: &'a str,
    pub(super) figure: &'a Figure,
    /// The command of the program that receives; `None` if the sender needs none.
    pub(super) receiver: Option<&'a str>,
    /// The processor that the bench runs on.
    pub(super) cpu: usize,
}

pub(super) struct Program<'a> {
    peer: Peer,
    account: Account<'a>,
    /// Bytes of a message.
    bytes: u64,
    /// Keeps the program's port from other rows.
    _own: OwnQueue<'a>,
}

impl<'a> Program<'a> {
    /// Starts the program that receives, if there is one.
    ///
    /// # Errors
    ///
    /// One line that says why it does not start.
    pub(super) fn new(
        testbed: &'a Testbed,
        job: Job,
        sending: Sending<'_>,
    ) -> Result<Self, String> {
        let Sending { command, figure, receiver, cpu } = sending;
        let own = testbed.own_port()?;
        let mut placeholders = testbed.placeholders(&own, cpu);
        placeholders.0.extend([
            ("from_addr", testbed.connecting().v4().to_string()),
            ("bytes", job.bytes.to_string()),
            ("depth", job.buffers().to_string()),
            ("sockets", job.sockets.to_string()),
        ]);
        // The bench waits for no listening port: the program may listen itself, or the kernel's RDS may do so
        // for it.
        let namespace = testbed.connected().namespace();
        let processors = Affinity::Only(testbed.others());
        let receive =
            |command| Receiver::start(&placeholders.fill(command), namespace, None, processors);
        let receiver = receiver.map(receive).transpose()?;
        let peer = Peer {
            command: command.to_owned(),
            figure: figure.clone(),
            placeholders,
            namespace: testbed.connecting().namespace().clone(),
            receiver,
        };
        // The kernel's RDS may work for the program, so its workers count, as for our rows of that engine.
        let threads = testbed.napi_of_connecting().iter().cloned().chain(tasks::workers());
        let account = Account::new(threads, vec![testbed]).of_ended_programs();
        Ok(Self { peer, account, bytes: job.bytes as u64, _own: own })
    }
}

impl Engine for Program<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let begun = self.account.begin(Waits::default())?;
        let sent = self.peer.run(slot)?;
        let spent = self.account.end(&begun, Waits::default)?;
        // The program's rate refers to the time for which the program ran.
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
