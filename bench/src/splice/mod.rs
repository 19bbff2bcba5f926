//! `handoff bench splice`: what it takes to pass one page from a source to a sink, through a pipe or
//! lent into a ring.
//!
//! Contracts:
//!
//! 1. A request is one page of a source that has it ready, passed to `/dev/null`: by splice through a
//!    pipe, or lent into a slot of a ring, written from there (`WRITE_FIXED`), the slot cleared and the
//!    page given back. A row's figures contain all of it: what the last requests leave in slots is
//!    cleared before the clock stops.
//! 2. A row of depth N submits N requests together and waits for them before the next N.
//! 3. Neither source allocates, reads or copies: splice gets the kernel's page of zeros from a file
//!    that is one hole, getbuf lends a page of zeros of its own.
//! 4. The module counts what it lent in each slot, and what came back: if that is not what was asked
//!    for, the row has failed.

mod device;
mod lent;
mod ring;
mod spliced;

use std::time::Duration;

use clap::Args;
use handoff_lab::{instructions, topology};

use self::{
    lent::{Form, Lent},
    spliced::{OpSplice, Splice},
};
use crate::{
    command::{BenchError, Context},
    measure::{self, Engine, Measured, Plan, Subject, Tally},
    processor::Pinned,
    report::{Config, Report},
    run::{self, Bench, RunOptions},
    witness,
};

/// Of a request.
const BYTES: u32 = 4_096;
/// Requests after which an engine looks at the clock, whatever its depth.
const LOOK: u32 = 32;
/// Divisors of the above.
const DEPTHS: [u16; 6] = [1, 2, 4, 8, 16, 32];

const EXAMPLES: &str = "\
Rows (the ratio is to splice, of the same depth):
  splice      splice(2) twice, into a pipe and out of it; it has no depth, and is run beside each
  op-splice   the same as two linked requests of io_uring, which the kernel leaves to its workers
  get         one GET clears N slots of the ring and lends a page into each, N WRITE_FIXED write them
  get-each    a GET for each write, which clears its slot and lends a page into it
  get-linked  the same, and each write is linked to its GET
  get-nop     as get-each, with a request that does nothing beside each
  get-put     GET into an empty slot, WRITE_FIXED, and PUT, which clears it
  get-kept    each slot is lent a page once, which is written again and again

A request is one page that the source has ready, passed to /dev/null, and given back: lent pages all
are, but for get-kept. At depth N, N of them are one submission, by one call; none is linked but those
of op-splice and get-linked. What the module getbuf counts is compared with what was asked for: lends
are those per request.

Examples:
  handoff bench splice --quick --lab
  handoff bench splice --quick
  handoff bench splice --only 'depth=32 ' --json-file before.json
  handoff bench splice --compare before.json

Rows of getbuf need its module and root; others, Linux 6.6. With --lab, what the lab needs.";

/// Options of `handoff bench splice`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SpliceArgs {
    /// What every bench takes.
    #[command(flatten)]
    pub run: RunOptions,

    /// The processor to work on [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "lab")]
    pub cpu: Option<usize>,
}

/// Runs the bench.
///
/// # Errors
///
/// See [`BenchError`].
pub fn run(args: &SpliceArgs, context: &mut Context<'_>) -> Result<(), BenchError> {
    run::run(&SpliceBench { args }, context)
}

struct SpliceBench<'a> {
    args: &'a SpliceArgs,
}

impl Bench for SpliceBench<'_> {
    const NAME: &'static str = "splice";

    fn options(&self) -> &RunOptions {
        &self.args.run
    }

    fn arguments(&self) -> Vec<String> {
        Vec::new()
    }

    fn slots(&self, _rows: usize, counted: bool) -> (Duration, u32) {
        let (milliseconds, rounds) = match (self.args.run.quick, counted) {
            (true, false) => (50, 7),
            (false, false) => (200, 15),
            (true, true) => (10, 3),
            (false, true) => (30, 5),
        };
        (Duration::from_millis(milliseconds), rounds)
    }

    fn measure(&self, context: &Context<'_>) -> Result<(Measured, String), BenchError> {
        if witness::is_at_hand() {
            topology::load("getbuf", &[])
                .map_err(|error| BenchError::NotPossible(error.to_string()))?;
        }
        let pinned = Pinned::to(self.args.cpu).map_err(BenchError::Usage)?;
        let subjects = subjects(self.args);
        let (slot, rounds) =
            self.args.run.slots(self.slots(subjects.len(), instructions::counting()));
        // A thread has places for 16 rings.
        let plan = Plan { slot, peer_slot: slot, rounds, keep_engines: false };
        let mut measured = measure::measure(&subjects, plan, context.stop, &|| Duration::ZERO)
            .ok_or(BenchError::Stopped)?;
        if witness::is_at_hand() {
            witness::attest(&subjects, &mut measured.rows, context.stop);
        }
        Ok((measured, format!("on processor {}\n", pinned.cpu())))
    }

    fn subject(&self, _report: &Report) -> String {
        "pass one page on, to /dev/null".to_owned()
    }

    fn conditions(&self, _report: &Report) -> String {
        "each request has its slot cleared and its page given back, but for get-kept\n".to_owned()
    }
}

/// All rows that `--only` lets through, and those that they compare with, in the table's order.
fn subjects(args: &SpliceArgs) -> Vec<Subject<'static>> {
    let mut subjects: Vec<_> = DEPTHS
        .into_iter()
        .flat_map(|depth| {
            let splice = subject(depth, "splice", Splice::new);
            let requests = subject(depth, "op-splice", move || OpSplice::new(depth.into()));
            let lent =
                Form::ALL.map(|form| subject(depth, form.engine(), move || Lent::new(form, depth)));
            [Subject { baseline: true, ..splice }, requests].into_iter().chain(lent)
        })
        .collect();
    let wanted = |subject: &Subject<'_>| args.run.wants(&subject.name);
    let compared: Vec<Config> =
        subjects.iter().filter(|it| wanted(it)).map(|it| it.config.clone()).collect();
    subjects.retain(|it| {
        wanted(it) || it.baseline && compared.iter().any(|config| config.same_work(&it.config))
    });
    subjects
}

fn subject<E: Engine + 'static>(
    depth: u16,
    engine: &str,
    make: impl Fn() -> Result<E, String> + 'static,
) -> Subject<'static> {
    Subject {
        name: format!("depth={depth} {engine}"),
        engine: engine.to_owned(),
        config: Config {
            bytes: Some(BYTES.into()),
            op: Some("pass".to_owned()),
            target: Some("null".to_owned()),
            depth: Some(depth.into()),
            ..Config::default()
        },
        baseline: false,
        peer: false,
        make: Box::new(move || make().map(|engine| Box::new(engine) as _)),
    }
}

/// What so many requests come to.
fn tally(operations: u64) -> Tally {
    Tally { bytes: operations * u64::from(BYTES), operations: Some(operations), ..Tally::default() }
}

#[cfg(test)]
mod tests;
