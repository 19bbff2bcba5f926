//! The measuring frame: engines take turns in short slots, round after round.
//!
//! Contracts:
//!
//! 1. Every subject runs one slot in each round; every other round goes through the subjects
//!    backwards, so that a drift of the machine's speed favours none.
//! 2. A slot's clock stops when every lent buffer is back. Time in which the thread was ready to run and
//!    other programs held the processor does not count.
//! 3. A subject that cannot run or fails keeps its row, with the reason; the others go on.

mod engine;
mod figures;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use handoff_command::growth::Growth;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use self::engine::{Cpu, Engine, MakeEngine, Reaped, Slot, Subject, Tally, Time};
use self::figures::timed;
use crate::{
    report::{Latency, Row},
    statistics::Spread,
};

/// How the time of a measurement is divided.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The length of one slot.
    pub slot: Duration,
    /// The length of one run of a peer.
    pub peer_slot: Duration,
    /// How many slots each subject gets.
    pub rounds: u32,
    /// Whether engines live from their first slot to their last. Otherwise each is made anew for every
    /// slot, so that only one at a time holds its memory.
    pub keep_engines: bool,
    /// What ratios compare.
    pub compare: Compare,
}

/// What ratios compare; above 1 is better than the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Bytes per second.
    Speed,
    /// CPU time for each byte.
    Cost,
}

/// An engine warms its caches up for this long before each slot.
const WARM_UP: Duration = Duration::from_millis(10);

/// What a measurement has found.
#[derive(Debug)]
pub struct Measured {
    /// One row per subject, in their order.
    pub rows: Vec<Row>,
    /// The engines that failed while running, apart from peers.
    pub failed: Vec<String>,
    /// The share of the time, 0 to 1, in which other programs held the processor.
    pub kept_waiting: f64,
}

impl Measured {
    /// A line that says that other programs held the processor for long, and what that does to the figures;
    /// empty if they did not.
    pub(crate) fn busy(&self, processor: &str, effect: &str) -> String {
        /// The share of the time in which other programs may hold it before the table mentions that.
        const MOST: f64 = 0.02;

        if self.kept_waiting <= MOST {
            return String::new();
        }
        let percent = self.kept_waiting * 100.0;
        format!(
            "busy machine: other programs held {processor} for {percent:.0} % of the time, which does not \
             count, but {effect}\n"
        )
    }
}

#[derive(Default)]
struct Track<'a> {
    engine: Option<Box<dyn Engine + 'a>>,
    slots: Vec<Option<(Time, Row)>>,
    growth: Vec<Growth>,
    skipped: Option<String>,
    failed: bool,
}

/// Measures all subjects. `far_end_cpu` returns the CPU time so far of this process's threads that serve as the
/// far end. Returns `None` if the user ended the bench.
pub fn measure(
    subjects: &[Subject<'_>],
    plan: Plan,
    stop: &AtomicBool,
    far_end_cpu: &dyn Fn() -> Duration,
) -> Option<Measured> {
    let mut tracks: Vec<Track<'_>> = subjects.iter().map(|_| Track::default()).collect();
    let progress = progress_bar(subjects.len() as u64 * u64::from(plan.rounds));
    for round in 0..plan.rounds {
        let forwards = 0..subjects.len();
        let order: Vec<usize> =
            if round % 2 == 0 { forwards.collect() } else { forwards.rev().collect() };
        for index in order {
            let (subject, track) = (&subjects[index], &mut tracks[index]);
            progress.set_message(subject.name.clone());
            let figures = track.run_slot(subject, plan, stop, far_end_cpu);
            if stop.load(Ordering::Relaxed) {
                progress.finish_and_clear();
                return None;
            }
            track.slots.push(figures);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let failed = subjects
        .iter()
        .zip(&tracks)
        .filter(|(subject, track)| track.failed && !subject.peer)
        .map(|(subject, _)| subject.name.clone())
        .collect();
    let times = || tracks.iter().flat_map(|track| &track.slots).flatten().map(|(time, _)| time);
    let elapsed: Duration = times().map(|time| time.elapsed).sum();
    let kept_waiting: Duration = times().map(|time| time.kept_waiting).sum();
    let kept_waiting = kept_waiting.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    Some(Measured { rows: rows(subjects, &tracks, plan.compare), failed, kept_waiting })
}

fn progress_bar(slots: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(slots), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {percent:>3}% {eta:>4} left  {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

impl<'a> Track<'a> {
    fn run_slot(
        &mut self,
        subject: &Subject<'a>,
        plan: Plan,
        stop: &AtomicBool,
        far_end_cpu: &dyn Fn() -> Duration,
    ) -> Option<(Time, Row)> {
        if self.skipped.is_some() {
            return None;
        }
        let mut engine = match self.engine.take().map_or_else(|| (subject.make)(), Ok) {
            Ok(engine) => engine,
            Err(reason) => {
                self.skipped = Some(reason);
                return None;
            }
        };
        let warm = match engine.warms_up() {
            true => engine.run(&Slot::new(WARM_UP.min(plan.slot), stop)).map(drop),
            false => Ok(()),
        };
        let length = if subject.peer { plan.peer_slot } else { plan.slot };
        match warm.and_then(|()| timed(&mut *engine, length, stop, far_end_cpu)) {
            Ok(figures) => {
                self.growth = engine.growth();
                if plan.keep_engines {
                    self.engine = Some(engine);
                }
                figures
            }
            Err(reason) => {
                self.failed = true;
                self.skipped = Some(reason);
                self.slots.clear();
                None
            }
        }
    }
}

fn rows(subjects: &[Subject<'_>], tracks: &[Track<'_>], compare: Compare) -> Vec<Row> {
    let compared = |slot: &Option<(Time, Row)>| match (slot, compare) {
        (None, _) => None,
        (Some((_, figures)), Compare::Speed) => figures.bytes_per_s,
        (Some((_, figures)), Compare::Cost) => figures.cpu_ns_per_byte.map(f64::recip),
    };
    let speeds =
        |track: &Track<'_>| -> Vec<Option<f64>> { track.slots.iter().map(compared).collect() };
    subjects
        .iter()
        .zip(tracks)
        .map(|(subject, track)| {
            let baseline = subjects
                .iter()
                .zip(tracks)
                .find(|(other, _)| other.baseline && other.config.same_work(&subject.config));
            let ratio =
                baseline.and_then(|(_, base)| Spread::of_ratios(&speeds(track), &speeds(base)));
            let median = |of: &dyn Fn(&Row) -> Option<f64>| {
                let slots = track.slots.iter().flatten();
                Spread::of(slots.filter_map(|(_, slot)| of(slot))).map(|it| it.median)
            };
            let bytes_per_s = median(&|slot| slot.bytes_per_s);
            let latency =
                |of: fn(&Latency) -> f64| median(&|slot| slot.latency_us.as_ref().map(of));
            let latency_us = || {
                Some(Latency {
                    p50: latency(|it| it.p50)?,
                    p90: latency(|it| it.p90)?,
                    p99: latency(|it| it.p99)?,
                    p999: latency(|it| it.p999)?,
                    simulated_dma: median(&|slot| slot.latency_us.and_then(|it| it.simulated_dma)),
                })
            };
            let none = || "nothing was moved in any of its slots".to_owned();
            Row {
                name: subject.name.clone(),
                engine: subject.engine.clone(),
                config: subject.config.clone(),
                baseline: subject.baseline,
                peer: subject.peer,
                ratio: ratio.map(|it| it.median),
                ratio_min: ratio.map(|it| it.min),
                ratio_max: ratio.map(|it| it.max),
                bytes_per_s,
                ops_per_s: median(&|slot| slot.ops_per_s),
                cpu_ns_per_byte: median(&|slot| slot.cpu_ns_per_byte),
                cpu_ns_per_op: median(&|slot| slot.cpu_ns_per_op),
                cpu_ns_per_op_all: median(&|slot| slot.cpu_ns_per_op_all),
                cpu_share: median(&|slot| slot.cpu_share),
                lends_per_op: median(&|slot| slot.lends_per_op),
                switches_per_op: median(&|slot| slot.switches_per_op),
                copied_share: median(&|slot| slot.copied_share),
                ciphered_share: median(&|slot| slot.ciphered_share),
                simulated_dma_share: median(&|slot| slot.simulated_dma_share),
                busy_share: median(&|slot| slot.busy_share),
                softirq_share: median(&|slot| slot.softirq_share),
                latency_us: latency_us(),
                user_ns_per_op: median(&|slot| slot.user_ns_per_op),
                reap_calls: median(&|slot| slot.reap_calls),
                reap_ns: median(&|slot| slot.reap_ns),
                growth: track.growth.clone(),
                skipped: track.skipped.clone().or_else(|| bytes_per_s.is_none().then(none)),
                ..Row::default()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::report::Config;

    /// An engine that moves a fixed number of bytes per slot, in a fixed time of its own.
    struct Fixed<'a> {
        name: &'static str,
        bytes: u64,
        /// The shortest slot in which the engine moves anything.
        shortest: Duration,
        log: &'a RefCell<Vec<&'static str>>,
        fails: bool,
    }

    impl Engine for Fixed<'_> {
        fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
            if slot.length() < self.shortest {
                return Ok(Tally::default());
            }
            self.log.borrow_mut().push(self.name);
            if self.fails {
                return Err("it broke".into());
            }
            let time = Time {
                elapsed: Duration::from_millis(150),
                kept_waiting: Duration::from_millis(50),
            };
            Ok(Tally {
                bytes: self.bytes,
                operations: Some(self.bytes / 10),
                copied: Some(self.bytes / 4),
                time: Some(time),
                ..Tally::default()
            })
        }
    }

    const PLAN: Plan = Plan {
        slot: Duration::from_millis(20),
        peer_slot: Duration::from_millis(20),
        rounds: 2,
        keep_engines: true,
        compare: Compare::Speed,
    };

    fn subject<'a>(
        log: &'a RefCell<Vec<&'static str>>,
        name: &'static str,
        bytes: u64,
        fails: bool,
    ) -> Subject<'a> {
        Subject {
            name: name.into(),
            engine: name.into(),
            config: Config::default(),
            baseline: name == "base",
            peer: false,
            make: Box::new(move || {
                Ok(Box::new(Fixed { name, bytes, shortest: PLAN.slot, log, fails }))
            }),
        }
    }

    #[test]
    fn rows_alternate_and_compare_to_the_baseline_of_their_round() {
        let log = RefCell::default();
        let subjects = [
            subject(&log, "base", 1_000, false),
            subject(&log, "twice", 2_000, false),
            subject(&log, "broken", 1, true),
        ];
        let stop = AtomicBool::new(false);
        let measured = measure(&subjects, PLAN, &stop, &|| Duration::ZERO).unwrap();
        assert_eq!(*log.borrow(), ["base", "twice", "broken", "twice", "base"]);

        let [base, twice, broken] = &measured.rows[..] else { panic!("a row is missing") };
        assert_eq!((base.ratio, twice.ratio), (Some(1.0), Some(2.0)));
        // The slot takes 150 ms, of which other programs hold the processor for 50.
        assert_eq!(twice.bytes_per_s.map(f64::round), Some(20_000.0));
        assert_eq!(twice.ops_per_s.map(f64::round), Some(2_000.0));
        assert_eq!(twice.copied_share, Some(0.25));
        assert_eq!(broken.skipped.as_deref(), Some("it broke"));
        assert_eq!((broken.ratio, broken.bytes_per_s), (None, None));
        assert_eq!(measured.failed, ["broken"]);
        assert!((measured.kept_waiting - 1.0 / 3.0).abs() < 0.01);
    }

    #[test]
    fn what_cannot_be_made_is_skipped_and_is_no_failure() {
        let log = RefCell::default();
        let subjects = [
            subject(&log, "base", 1_000, false),
            Subject {
                make: Box::new(|| Err("no such device".into())),
                ..subject(&log, "absent", 1, false)
            },
        ];
        let stop = AtomicBool::new(false);
        let measured = measure(&subjects, PLAN, &stop, &|| Duration::ZERO).unwrap();
        assert_eq!(measured.rows[1].skipped.as_deref(), Some("no such device"));
        assert!(measured.failed.is_empty());
    }

    #[test]
    fn a_slot_in_which_nothing_was_moved_is_taken_again_for_longer() {
        let log = RefCell::default();
        let of = |shortest| Subject {
            make: Box::new({
                let log = &log;
                move || Ok(Box::new(Fixed { name: "slow", bytes: 10, shortest, log, fails: false }))
            }),
            ..subject(&log, "slow", 10, false)
        };
        let subjects = [of(PLAN.slot * 8), of(Duration::MAX)];
        let stop = AtomicBool::new(false);
        let measured = measure(&subjects, PLAN, &stop, &|| Duration::ZERO).unwrap();
        assert_eq!(log.borrow().len(), PLAN.rounds as usize);
        assert_eq!(measured.rows[0].copied_share, Some(0.2));
        assert!(measured.rows[1].skipped.is_some(), "{:?}", measured.rows[1]);
    }

    #[test]
    fn a_stop_ends_it_within_the_slot() {
        let log = RefCell::default();
        let subjects = [subject(&log, "base", 1_000, false), subject(&log, "other", 1, false)];
        let stop = AtomicBool::new(true);
        assert!(measure(&subjects, PLAN, &stop, &|| Duration::ZERO).is_none());
        assert!(log.borrow().len() <= 1);
    }
}
