//! `handoff rds stress`: requests of one size, answers of another, so many under way.

mod answer;
mod ask;
mod peers;
mod shared;

use std::cell::{Cell, RefCell};
use std::time::Instant;

use futures_util::future::try_join_all;
use handoff::{Driver, Executor};
use handoff_command::{Context, Failure, output};

use self::ask::Asking;
use self::shared::Run;
pub(super) use self::shared::StressArgs;
use super::report::Report;

pub(super) fn run(args: &StressArgs, context: &Context) -> Result<(), Failure> {
    let driver =
        Driver::builder().entries(1024).in_flight(65_536).build().map_err(Failure::not_possible)?;
    let under_way = args.under_way();
    let (host, passed_over) =
        args.serving.host(&driver, args.own, &args.peers, args.copy, under_way)?;
    let executor = Executor::new(&driver);
    host.serve(&executor);
    let asking = match args.peers.is_empty() {
        true => Vec::new(),
        false => (0..args.tasks)
            .map(|_| Asking::set_up(args, &host, &driver))
            .collect::<Result<_, _>>()?,
    };
    let begin = Instant::now();
    let run = Run {
        args,
        context,
        driver: &driver,
        begin,
        answered: Cell::new(begin),
        counted: RefCell::default(),
    };
    let ended = executor.run(async {
        if args.peers.is_empty() {
            return answer::run(&run, &host, &driver).await;
        }
        let tasks = asking.into_iter().map(|task| task.run(&run));
        try_join_all(tasks).await.map(|_| ())
    });
    let seconds = run.begin.elapsed().as_secs_f64();
    let counted = run.counted.take();
    let report = Report {
        engine: host.name(),
        passed_over,
        seconds,
        messages: counted.messages,
        messages_per_s: counted.messages as f64 / seconds,
        bytes: counted.bytes,
        bytes_per_s: counted.bytes as f64 / seconds,
        corrupt: counted.corrupt,
        asked_again: counted.asked_again,
        lost: counted.lost,
        latency_us: counted.times.percentiles(),
        sent: counted.tally,
    };
    if context.json {
        output::json(&report)?
    } else {
        output::text(&report.text())?
    }
    ended.map_err(Failure::failed)??;
    if counted.corrupt > 0 {
        return Err(Failure::failed(format!(
            "{} messages differ from what was sent",
            counted.corrupt
        )));
    }
    context.stop.check()?;
    if counted.unanswered > 0 {
        return Err(Failure::failed(format!("{} requests were not answered", counted.unanswered)));
    }
    if counted.lost > 0 {
        return Err(Failure::failed(format!(
            "{} requests were lost, and others sent in their place: their peer was restarted meanwhile, or takes \
             messages and does not answer them",
            counted.lost
        )));
    }
    Ok(())
}
