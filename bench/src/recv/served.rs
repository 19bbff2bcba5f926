//! Another program that receives, as an engine of the measuring frame.
//!
//! What it received is what the sender's TCP has had acknowledged, once the program has read all of
//! it; nobody says what of it was copied, and nobody looks at it.

use std::sync::atomic::AtomicBool;

use super::Bed;
use crate::{
    measure::{Engine, Slot, Tally},
    network::{account::Account, program::Program, queues::OwnQueue, sender::Sender},
};

pub(super) struct Served<'a> {
    // Ends the connection before its other end goes, and with that the queue is free.
    sender: Sender,
    program: Program<'a>,
    own: OwnQueue<'a>,
    account: Account<'a>,
}

impl<'a> Served<'a> {
    /// Starts a command, and connects to it.
    pub(super) fn new(
        bed: &'a Bed,
        command: &str,
        cpu: usize,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let own = bed.own_port()?;
        let placeholders = bed.placeholders(&own, cpu);
        let namespace = bed.connected().namespace();
        let mut program = Program::start(command, &placeholders, namespace, stop)?;
        let sender = bed.sender(program.connect(|| bed.reach(own.number()))?)?;
        let account = Account::new(bed.napi_of_connected().to_vec(), vec![bed]);
        let account = account.of_program(program.id());
        program.rest()?;
        Ok(Self { sender, program, own, account })
    }

    fn receive_for(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        let Self { sender, program, .. } = self;
        sender.begin();
        program.work(slot)?;
        let total = sender.rest();
        program.until("does not take what is sent", || {
            Ok((sender.acknowledged()? == total).then_some(()))
        })?;
        program.rest()
    }
}

impl Engine for Served<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let before = self.sender.acknowledged()?;
        let begun = self.account.begin(self.sender.kept_waiting())?;
        let received = self.receive_for(&slot.anew());
        let spent = self.account.end(&begun, || self.sender.kept_waiting());
        received.map_err(|error| self.sender.failure().unwrap_or(error))?;
        self.program.must_have_read(self.own.port())?;
        Ok(Tally { bytes: self.sender.acknowledged()? - before, ..spent? })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }
}
