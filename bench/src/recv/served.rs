//! Another program that receives, as an engine of the measuring frame.
//!
//! The bench knows what the program received: the bytes that its TCP has acknowledged, once the program has
//! read all of them. Nobody reports how many of them were copied, and nobody compares them.

use std::sync::atomic::AtomicBool;

use crate::{
    measure::{Engine, Slot, Tally},
    network::{
        account::Account,
        far::{FarEnd, Network},
        placement::{Placed, Placement},
        program::Program,
        queues::OwnQueue,
    },
    processor::{Pinned, Waits},
};

pub(super) struct Served<'a> {
    // The senders are dropped first: they end the connections, then the program ends, then the queue is free.
    senders: Vec<Box<dyn FarEnd>>,
    program: Program<'a>,
    own: OwnQueue<'a>,
    account: Account<'a>,
}

/// What the program must do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Serving<'a> {
    pub(super) command: &'a str,
    pub(super) connections: u32,
    /// The processor that the bench runs on.
    pub(super) cpu: usize,
    /// Where the program runs instead, relative to the processor where its queue's packets arrive when it starts.
    pub(super) placement: Option<Placement>,
}

impl<'a> Served<'a> {
    /// Starts the program's command, and connects to it.
    pub(super) fn new(
        network: &'a impl Network,
        serving: Serving<'_>,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let own = network.own_port()?;
        let place = |placement| Placed::new(network, Some(&own), placement)?.go();
        let there = serving.placement.map(place).transpose()?;
        let cpu = there.as_ref().map_or(serving.cpu, Pinned::cpu);
        let placeholders = network.placeholders(&own, cpu);
        let namespace = network.namespace();
        let mut program = Program::start(serving.command, &placeholders, namespace, stop)?;
        let connect = |_| program.connect(|| network.reach(&own));
        let senders = (0..serving.connections).map(connect).collect::<Result<_, _>>()?;
        let account = network.account().of_program(program.id());
        program.rest()?;
        Ok(Self { senders, program, own, account })
    }

    fn receive_for(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        let Self { senders, program, .. } = self;
        senders.iter().try_for_each(|sender| sender.begin())?;
        program.work(slot)?;
        let total = senders.iter().map(|sender| sender.rest()).sum::<Result<u64, _>>()?;
        program.takes("does not take what is sent", total, || acknowledged(senders))?;
        program.rest()
    }

    fn waits(&self) -> Waits {
        self.senders.iter().map(|sender| sender.waits()).collect()
    }
}

fn acknowledged(senders: &[Box<dyn FarEnd>]) -> Result<u64, String> {
    senders.iter().map(|sender| sender.acknowledged()).sum()
}

impl Engine for Served<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let before = acknowledged(&self.senders)?;
        let begun = self.account.begin(self.waits())?;
        let received = self.receive_for(&slot.anew());
        let spent = self.account.end(&begun, || self.waits());
        let failure = || self.senders.iter().find_map(|sender| sender.failure());
        received.map_err(|error| failure().unwrap_or(error))?;
        self.program.must_have_read(self.own.port())?;
        Ok(Tally { bytes: acknowledged(&self.senders)? - before, ..spent? })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }
}
