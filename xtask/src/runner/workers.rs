//! Decides which test runs when: workers take tests from the stages' queues until all are empty.
//!
//! Contracts:
//! - a worker runs one test at a time, on the host or in its own guest, so a stage with many tests ends up
//!   in several guests;
//! - there are two more workers than processors, since tests wait too;
//! - a stage for which no guest boots has failed; the others still run.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use handoff_lab::{Error, Guest, KernelChoice, Result, StopFlag};

use crate::in_guest::Guests;
use crate::plan::Plan;
use crate::report::{Ran, Report, TestResult, Verdict};
use crate::selection::{Program, Stage};
use crate::{keep, libtest, on_host};

/// How many tests must be left for each guest of a stage before another guest boots for it.
const WORTH_A_BOOT: usize = 8;

/// What the kernel says while a guest switches off, among the results.
const POWER_OFF: &str = "lab::power_off";

/// A test and its program.
type Test<'a> = (&'a Program, &'a str);

/// The test's name in reports.
fn name(program: &Program, test: &str) -> String {
    format!("{}::{test}", program.name)
}

/// The tests of a stage that have not started.
struct Queue<'a> {
    stage: &'a Stage,
    /// All programs with tests of the stage.
    programs: Arc<[&'a Program]>,
    tests: VecDeque<Test<'a>>,
    /// How many workers serve it.
    workers: usize,
}

/// Runs all stages. `each` is called with each result as it comes.
///
/// # Errors
///
/// If a program cannot be listed, a guest fails in a way that is not a test's, or the stop flag is set.
/// The [`Report`] has failed tests, and stages for which this machine cannot boot a guest.
pub fn run(plan: &Plan, stop: &StopFlag, each: impl FnMut(&TestResult) + Send) -> Result<Report> {
    let mut listed = Vec::new();
    for program in &plan.programs {
        listed.push((program, libtest::list(program)?));
    }
    let mut report = Report::default();
    // It is no stage's test.
    plan.known.iter().filter(|of| of.name == POWER_OFF).for_each(|of| report.add(of.clone()));
    let mut queues = Vec::new();
    for stage in &plan.stages {
        let place = stage.place();
        let known = plan.known.iter().filter(|test| test.place == place);
        let known: HashMap<_, _> = known.map(|test| (test.name.as_str(), test)).collect();
        let selected = stage.selected(&listed);
        let programs = selected.iter().map(|(program, _)| *program).collect();
        let of_program =
            |(program, tests): (_, Vec<_>)| tests.into_iter().map(move |test| (program, test));
        let tests = selected.into_iter().flat_map(of_program).enumerate();
        let of_part = tests.filter(|(index, _)| plan.part.has(*index));
        let mut tests: Vec<Test<'_>> = of_part.map(|(_, test)| test).collect();
        tests.retain(|(program, test)| {
            let result = known.get(name(program, test).as_str());
            result.into_iter().for_each(|test| report.add((*test).clone()));
            result.is_none()
        });
        let tests = tests.repeat(plan.repeat).into();
        queues.push(Queue { stage, programs, tests, workers: 0 });
    }
    let session = Session {
        plan,
        stop,
        guests: Guests::new(plan)?,
        queues: Mutex::new(queues),
        results: Mutex::new((report, each)),
    };
    let workers = 2 + thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(|| session.worker())).collect();
        // Wait for all, even when one has failed.
        let ended: Vec<_> = running.into_iter().map(|worker| worker.join()).collect();
        ended.into_iter().try_for_each(|worker| match worker {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(session.results.into_inner().unwrap_or_else(PoisonError::into_inner).0)
}

struct Session<'a, F> {
    plan: &'a Plan,
    stop: &'a StopFlag,
    guests: Guests<'a>,
    queues: Mutex<Vec<Queue<'a>>>,
    results: Mutex<(Report, F)>,
}

impl<'a, F: FnMut(&TestResult) + Send> Session<'a, F> {
    fn worker(&self) -> Result<()> {
        while let Some((number, stage, programs)) = self.choose() {
            let served = match &stage.kernel {
                None => self.on_host(number, stage),
                Some(kernel) => self.in_guest(number, stage, kernel, &programs),
            };
            self.queues()[number].workers -= 1;
            match served {
                // Whatever that broke, there is no result.
                Err(_) if self.stop.load(Ordering::Acquire) => return Err(Error::Stopped),
                Err(Error::NotPossible(reason)) => self.leave_out(number, stage, reason),
                Err(Error::Failed(reason)) => self.give_up(number, stage, &reason),
                other => other?,
            }
        }
        Ok(())
    }

    /// The stage that this worker serves next: the first that no worker serves, else the one with the most
    /// tests for each worker.
    fn choose(&self) -> Option<(usize, &'a Stage, Arc<[&'a Program]>)> {
        let mut queues = self.queues();
        let waiting = |queue: &Queue<'_>| {
            let least = match (queue.workers, &queue.stage.kernel) {
                (0, _) | (_, None) => 1,
                (workers, Some(_)) => (workers + 1) * WORTH_A_BOOT,
            };
            queue.tests.len() >= least
        };
        let alone = queues.iter().position(|queue| queue.workers == 0 && waiting(queue));
        let number = alone.or_else(|| {
            let shared = queues.iter().enumerate().filter(|(_, queue)| waiting(queue));
            let share = |queue: &Queue<'_>| queue.tests.len() / (queue.workers + 1);
            shared.max_by_key(|(_, queue)| share(queue)).map(|(number, _)| number)
        })?;
        let queue = &mut queues[number];
        queue.workers += 1;
        Some((number, queue.stage, Arc::clone(&queue.programs)))
    }

    fn next(&self, number: usize) -> Result<Option<Test<'a>>> {
        if self.stop.load(Ordering::Acquire) {
            return Err(Error::Stopped);
        }
        Ok(self.queues()[number].tests.pop_front())
    }

    fn on_host(&self, number: usize, stage: &Stage) -> Result<()> {
        while let Some((program, test)) = self.next(number)? {
            let ran = on_host::run(program, test, self.plan, self.stop)?;
            self.record(stage, &name(program, test), ran);
        }
        Ok(())
    }

    fn in_guest(
        &self,
        number: usize,
        stage: &Stage,
        kernel: &KernelChoice,
        programs: &[&Program],
    ) -> Result<()> {
        let mut guest = None;
        while let Some((program, test)) = self.next(number)? {
            let mut running = match guest.take() {
                Some(running) => running,
                None => match self.guests.boot(programs, kernel, self.stop) {
                    Ok(running) => {
                        let report = &mut self.results().0;
                        report.boots += 1;
                        report.boots_processor_seconds += running.processor_time().as_secs_f64();
                        running
                    }
                    Err(error) => {
                        self.queues()[number].tests.push_front((program, test));
                        return Err(error);
                    }
                },
            };
            let (ran, alive) = self.guests.run_test(&mut running, program, test)?;
            if alive {
                guest = Some(running);
            }
            self.record(stage, &name(program, test), ran);
        }
        if let Some(fault) = guest.map(Guest::power_off).transpose()?.flatten() {
            let reason = format!("the kernel reported while switching off:\n{fault}");
            self.record(stage, POWER_OFF, Ran::failed(reason));
        }
        Ok(())
    }

    /// Counts the remaining tests of a stage as failed.
    fn give_up(&self, number: usize, stage: &Stage, reason: &str) {
        let left = std::mem::take(&mut self.queues()[number].tests);
        for (program, test) in left {
            let why = format!("no guest for it: {reason}");
            let ran = Ran { ran: false, ..Ran::failed(why) };
            self.record(stage, &name(program, test), ran);
        }
    }

    /// Leaves out the remaining tests of a stage for which this machine cannot boot a guest.
    fn leave_out(&self, number: usize, stage: &Stage, reason: String) {
        self.queues()[number].tests.clear();
        self.results().0.left_out.insert(stage.place(), reason);
    }

    fn record(&self, stage: &Stage, name: &str, ran: Ran) {
        let place = stage.place();
        let Ran { verdict, took, computed, ran, details } = ran;
        let verdict = self.plan.may_skip.judge(&place, name, verdict);
        let kept = match (&verdict, &self.plan.keep) {
            (Verdict::Failed { reason }, Some(directory)) => {
                keep::write(directory, &place, name, reason, &details)
            }
            _ => None,
        };
        let result = TestResult {
            place,
            name: name.to_owned(),
            verdict,
            seconds: took.as_secs_f64(),
            processor_seconds: computed.as_secs_f64(),
            ran,
            kept,
        };
        let (report, each) = &mut *self.results();
        each(&result);
        report.add(result);
    }

    fn results(&self) -> MutexGuard<'_, (Report, F)> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Queue<'a>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
