//! One stream through another program, from one network to another, as an engine of the measuring frame.

use std::sync::atomic::AtomicBool;

use super::{Drain, Sender, streams::Streams};
use crate::{
    measure::{Engine, Slot, Tally},
    network::{
        account::Account,
        far::{FarEnd as _, Network as _},
        program::Program,
        queues::OwnQueue,
        testbed::SHARED,
    },
    processor::Waits,
};

pub(super) struct Passed<'a> {
    // Both ends of the stream are dropped before the program between them.
    sender: Sender,
    drain: Drain,
    program: Program<'a>,
    own: OwnQueue<'a>,
    account: Account<'a>,
    total: u64,
}

impl<'a> Passed<'a> {
    /// Starts the program's command, connects to it, and waits until it connects onward.
    pub(super) fn new(
        streams: &'a Streams,
        command: &str,
        cpu: usize,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let Streams { source, sink, .. } = streams;
        let own = source.own_port()?;
        let mut placeholders = source.placeholders(&own, cpu);
        let (address, port) = sink.far_address(SHARED);
        placeholders.0.push(("to_addr", address.to_string()));
        placeholders.0.push(("to_port", port.to_string()));
        let listener = sink.listen(SHARED)?;
        let namespace = source.connected().namespace();
        let mut program = Program::start(command, &placeholders, Some(namespace), stop)?;
        let sender = source.sender(program.connect(|| source.reach(own.number()))?)?;
        let drain = sink.drain(program.accept(&listener)?)?;
        let threads = source.napi_of_connected().iter().chain(sink.napi_of_connecting());
        let account = Account::new(threads.cloned(), vec![source, sink]).of_program(program.id());
        program.rest()?;
        Ok(Self { sender, drain, program, own, account, total: 0 })
    }

    fn pass_for(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        let Self { sender, drain, program, total, .. } = self;
        sender.begin();
        program.work(slot)?;
        *total = sender.rest();
        program.takes("keeps the sender waiting", *total, || sender.acknowledged())?;
        drain.await_total(*total)?;
        program.rest()
    }
}

impl Engine for Passed<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let waits =
            |this: &Self| [this.sender.waits(), this.drain.waits()].into_iter().collect::<Waits>();
        let before = self.total;
        let begun = self.account.begin(waits(self))?;
        let passed = self.pass_for(&slot.anew());
        let spent = self.account.end(&begun, || waits(self));
        passed.map_err(|error| self.sender.failure().unwrap_or(error))?;
        self.program.must_have_read(self.own.port())?;
        Ok(Tally { bytes: self.total - before, ..spent? })
    }

    /// Rows of routes do not warm up either: they have a new stream in each slot.
    fn warms_up(&self) -> bool {
        false
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }
}
