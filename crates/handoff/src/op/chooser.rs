//! The choice between zero copy and copying, per socket and size.
//!
//! Contracts:
//! - it learns from sends that are made anyway, never by extra traffic;
//! - if the kernel reports that a route copies (loopback, a device without scatter-gather), or zero copy
//!   failed where copying worked (a limit on locked memory), the socket copies in user context, and tries
//!   again now and then;
//! - it copies sends of less than 1 KiB, and lends sends of 64 KiB and more where the kernel reports its
//!   copies;
//! - between these sizes it times its own first sends of a size with either engine, in CPU time, and keeps
//!   the cheaper one. Sizes below one where copying won copy; sizes above one where zero copy won lend;
//! - it can always say what it chose and why.

use crate::mechanism::Engine;

/// Timed sends of each kind before a size is decided.
const SAMPLES: usize = 8;
/// Sends of each kind made for timing. A send that has to wait for room gives no sample; if messages are
/// larger than the socket's buffer, that may be all sends of a kind.
const TRIES: usize = 2 * SAMPLES;
/// Consecutive reports of a copy that settle a route.
const COPIED_REPORTS: u32 = 4;
/// On a socket that left zero copy, one in so many sends checks whether zero copy works again.
const LOOK_AGAIN: u32 = 1024;
/// Below this size copying is cheaper everywhere, and is not timed.
const ALWAYS_COPIED: usize = 1 << 10;
/// From this size up lending is cheaper, unless the kernel copies anyway.
const ALWAYS_LENT: usize = 64 << 10;
/// With nothing known yet: from this size up zero copy is the better guess.
const GUESS: usize = 16 * 1024;

/// The engine that a socket chose for a size of message.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// let choice = socket.choice(64 << 10);
/// println!("64 KiB would go by {}: {}", choice.engine, choice.reason);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub engine: Engine,
    /// The reason, for people to read.
    pub reason: String,
}

/// What to do with this send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) engine: Engine,
    /// Whether its cost is worth knowing.
    pub(crate) timed: bool,
}

/// CPU nanoseconds of the first sends of a size class by one engine.
#[derive(Clone, Copy, Default)]
struct Samples {
    nanos: [u64; SAMPLES],
    taken: usize,
    tried: usize,
}

impl Samples {
    fn median(&self) -> u64 {
        let mut sorted = self.nanos;
        sorted.sort_unstable();
        sorted[SAMPLES / 2]
    }

    fn complete(&self) -> bool {
        self.taken == SAMPLES
    }
}

/// The samples of sizes from 2^n up to below 2^(n+1).
#[derive(Clone, Copy, Default)]
struct Class {
    zero_copy: Samples,
    copy: Samples,
}

impl Class {
    /// Whether the next timed send is zero-copy, if another sample is useful.
    fn next_to_time(&mut self) -> Option<bool> {
        let without_copy = self.zero_copy.tried <= self.copy.tried;
        let samples = if without_copy { &mut self.zero_copy } else { &mut self.copy };
        if samples.tried == TRIES {
            return None;
        }
        samples.tried += 1;
        Some(without_copy)
    }
}

pub(crate) struct Chooser {
    wish: Engine,
    /// The zero-copy engine that works here, or why none does.
    zero_copy: Result<Engine, String>,
    /// Whether the kernel reports what it copied of a zero-copy send.
    told: bool,
    classes: Vec<(u32, Class)>,
    /// The smallest class in which zero copy won.
    zero_copy_from: Option<u32>,
    /// The largest class in which copying won.
    copy_up_to: Option<u32>,
    copied_in_a_row: u32,
    /// Why the socket does not use zero copy for now.
    left: Option<Left>,
    since_look: u32,
}

/// Why a socket left zero copy for now.
enum Left {
    /// The kernel reported copies.
    Copies,
    /// It failed; `looked` says whether a later send has checked if it still does.
    Failed { reason: String, looked: bool },
}

impl Left {
    fn reason(&self) -> &str {
        match self {
            Self::Copies => "the kernel reported that it copies zero-copy sends on this route",
            Self::Failed { reason, .. } => reason,
        }
    }
}

fn class_of(len: usize) -> u32 {
    len.max(1).ilog2()
}

impl Chooser {
    pub(crate) fn new(zero_copy: Result<Engine, String>, told: bool) -> Self {
        Self {
            wish: Engine::Auto,
            zero_copy,
            told,
            classes: Vec::new(),
            zero_copy_from: None,
            copy_up_to: None,
            copied_in_a_row: 0,
            left: None,
            since_look: 0,
        }
    }

    pub(crate) fn wish(&mut self, engine: Engine) {
        self.wish = engine;
    }

    /// Whether a failing engine may be replaced.
    pub(crate) fn is_free(&self) -> bool {
        self.is_wished(Engine::Auto)
    }

    /// The requested engine.
    pub(crate) fn wished(&self) -> Engine {
        self.wish
    }

    /// Whether the caller asked for this engine.
    pub(crate) fn is_wished(&self, engine: Engine) -> bool {
        self.wish == engine
    }

    /// Chooses for a send of `len` bytes; `may_time` says whether its time can be measured alone.
    #[inline]
    pub(crate) fn pick(&mut self, len: usize, may_time: impl FnOnce() -> bool) -> Pick {
        let plain = |engine| Pick { engine, timed: false };
        if self.wish != Engine::Auto {
            return plain(self.wish);
        }
        let Ok(zero_copy) = self.zero_copy else { return plain(Engine::Copy) };
        if let Some(left) = &mut self.left {
            self.since_look += 1;
            if self.since_look < LOOK_AGAIN {
                return plain(Engine::Copy);
            }
            self.since_look = 0;
            if let Left::Failed { looked, .. } = left {
                *looked = true;
            }
            return plain(zero_copy);
        }
        match self.settled(len) {
            Some(true) => plain(zero_copy),
            Some(false) => plain(Engine::Copy),
            None => {
                if may_time()
                    && let Some(without_copy) = self.class(class_of(len)).next_to_time()
                {
                    let engine = if without_copy { zero_copy } else { Engine::Copy };
                    return Pick { engine, timed: true };
                }
                plain(if len >= GUESS { zero_copy } else { Engine::Copy })
            }
        }
    }

    /// Whether sends of this size are zero-copy, if known.
    fn settled(&self, len: usize) -> Option<bool> {
        let class = class_of(len);
        let won = || self.zero_copy_from.is_some_and(|from| class >= from);
        if len < ALWAYS_COPIED {
            Some(false)
        } else if self.always_lent(len) || won() {
            Some(true)
        } else if self.copy_up_to.is_some_and(|up_to| class <= up_to) {
            Some(false)
        } else {
            None
        }
    }

    fn always_lent(&self, len: usize) -> bool {
        self.told && len >= ALWAYS_LENT
    }

    fn class(&mut self, class: u32) -> &mut Class {
        let place =
            self.classes.iter().position(|(known, _)| *known == class).unwrap_or_else(|| {
                self.classes.push((class, Class::default()));
                self.classes.len() - 1
            });
        &mut self.classes[place].1
    }

    /// Records the cost of a timed send.
    pub(crate) fn timed(&mut self, len: usize, engine: Engine, nanos: u64) {
        let number = class_of(len);
        let class = self.class(number);
        let samples = if engine == Engine::Copy { &mut class.copy } else { &mut class.zero_copy };
        if !samples.complete() {
            samples.nanos[samples.taken] = nanos;
            samples.taken += 1;
        }
        let class = *class;
        if class.copy.complete() && class.zero_copy.complete() && self.settled(len).is_none() {
            if class.zero_copy.median() <= class.copy.median() {
                self.zero_copy_from = Some(number);
            } else {
                self.copy_up_to = Some(number);
            }
        }
    }

    /// Records the kernel's report of a zero-copy send.
    pub(crate) fn reported(&mut self, copied: Option<bool>) {
        match copied {
            Some(true) => {
                self.copied_in_a_row = self.copied_in_a_row.saturating_add(1);
                if self.copied_in_a_row >= COPIED_REPORTS && self.left.is_none() {
                    self.leave(Left::Copies);
                }
            }
            Some(false) => self.copied_in_a_row = 0,
            None => {}
        }
        // A send from before the failure says nothing about it; where the kernel reports nothing, no report
        // led away from zero copy.
        let back = match self.left {
            Some(Left::Copies) => copied == Some(false),
            Some(Left::Failed { looked, .. }) => looked && copied != Some(true),
            None => false,
        };
        if back {
            self.left = None;
        }
    }

    fn leave(&mut self, left: Left) {
        tracing::info!(reason = left.reason(), "copying for now");
        self.left = Some(left);
        self.since_look = 0;
    }

    /// Zero copy is impossible on this socket from now on, for this reason.
    #[cold]
    pub(crate) fn rule_out(&mut self, reason: String) {
        tracing::info!(reason, "copying");
        self.zero_copy = Err(reason);
    }

    /// Zero copy failed for this reason, and copying worked.
    pub(crate) fn failed(&mut self, reason: String) {
        // Sends of one batch fail for one reason.
        if !matches!(self.left, Some(Left::Failed { looked: false, .. })) {
            self.leave(Left::Failed { reason, looked: false });
        }
    }

    pub(crate) fn explain(&self, len: usize) -> Choice {
        let choice = |engine, reason| Choice { engine, reason };
        if self.wish != Engine::Auto {
            return choice(self.wish, "asked for".to_owned());
        }
        let zero_copy = match (&self.zero_copy, &self.left) {
            (Err(reason), _) => return choice(Engine::Copy, reason.clone()),
            (_, Some(left)) => return choice(Engine::Copy, left.reason().to_owned()),
            (Ok(engine), None) => *engine,
        };
        if len < ALWAYS_COPIED {
            let reason = format!("less than {ALWAYS_COPIED} bytes cost less to copy than to lend");
            return choice(Engine::Copy, reason);
        }
        if self.always_lent(len) {
            let reason = format!("{ALWAYS_LENT} bytes and more cost more to copy than to lend");
            return choice(zero_copy, reason);
        }
        let settled = self.settled(len);
        let engine = match settled {
            Some(true) => zero_copy,
            Some(false) => Engine::Copy,
            None if len >= GUESS => zero_copy,
            None => Engine::Copy,
        };
        let decisive = match settled {
            Some(true) => self.zero_copy_from,
            Some(false) => self.copy_up_to,
            None => None,
        };
        let samples =
            decisive.and_then(|number| self.classes.iter().find(|(known, _)| *known == number));
        let reason = match samples {
            Some((number, class)) => format!(
                "sends of {} bytes and more took {:.1} us of CPU without copying and {:.1} us with (medians of {SAMPLES})",
                1u64 << number,
                class.zero_copy.median() as f64 / 1e3,
                class.copy.median() as f64 / 1e3,
            ),
            None => "a guess by size, as too few sends have been timed".to_owned(),
        };
        choice(engine, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chooser() -> Chooser {
        Chooser::new(Ok(Engine::UringZc), true)
    }

    /// Sends `count` messages at the given costs, and returns the chosen engines.
    fn run(
        chooser: &mut Chooser,
        len: usize,
        count: usize,
        zero_copy: u64,
        copy: u64,
    ) -> Vec<Engine> {
        (0..count)
            .map(|_| {
                let pick = chooser.pick(len, || true);
                if pick.timed {
                    chooser.timed(
                        len,
                        pick.engine,
                        if pick.engine == Engine::Copy { copy } else { zero_copy },
                    );
                }
                pick.engine
            })
            .collect()
    }

    #[test]
    fn the_cheaper_engine_wins_after_its_samples() {
        let mut chooser = chooser();
        let first = run(&mut chooser, 32768, 2 * SAMPLES, 2_000, 5_000);
        assert_eq!(first.iter().filter(|engine| **engine == Engine::Copy).count(), SAMPLES);
        assert!(
            run(&mut chooser, 32768, 10, 2_000, 5_000)
                .iter()
                .all(|engine| *engine == Engine::UringZc)
        );
        assert!(
            chooser.explain(32768).reason.contains("2.0 us"),
            "{}",
            chooser.explain(32768).reason
        );
    }

    #[test]
    fn small_sends_are_copied_and_large_ones_lent_without_a_trial() {
        let mut chooser = chooser();
        let picks = |chooser: &mut Chooser, len| run(chooser, len, 100, 1, 1);
        assert_eq!(picks(&mut chooser, ALWAYS_COPIED - 1), vec![Engine::Copy; 100]);
        assert_eq!(picks(&mut chooser, ALWAYS_LENT), vec![Engine::UringZc; 100]);
        assert!(chooser.explain(100).reason.contains("to copy than to lend"));
        assert_eq!(chooser.explain(1 << 20).engine, Engine::UringZc);
        // Where nobody reports copies, lending may be in vain.
        let mut untold = Chooser::new(Ok(Engine::UringZc), false);
        assert!(picks(&mut untold, ALWAYS_LENT).contains(&Engine::Copy));
    }

    #[test]
    fn sends_that_wait_for_room_are_not_tried_for_ever() {
        let mut chooser = chooser();
        let picks: Vec<_> = (0..100).map(|_| chooser.pick(32 << 10, || true)).collect();
        let copies = picks.iter().filter(|pick| pick.engine == Engine::Copy).count();
        assert_eq!(copies, TRIES);
        assert_eq!(picks[99], Pick { engine: Engine::UringZc, timed: false });
        // Nothing is known yet of other sizes.
        assert!(chooser.pick(1 << 10, || true).timed);
    }

    #[test]
    fn a_verdict_holds_for_sizes_beyond_it() {
        let mut chooser = chooser();
        run(&mut chooser, 8192, 2 * SAMPLES, 2_000, 1_000);
        run(&mut chooser, 32768, 2 * SAMPLES, 2_000, 3_000);
        assert_eq!(chooser.pick(100, || true), Pick { engine: Engine::Copy, timed: false });
        assert_eq!(chooser.pick(1 << 20, || true), Pick { engine: Engine::UringZc, timed: false });
        assert!(chooser.pick(16384, || true).timed, "between the two nothing is known");
        assert_eq!(chooser.pick(GUESS, || false), Pick { engine: Engine::UringZc, timed: false });
        assert_eq!(chooser.pick(GUESS - 1, || false), Pick { engine: Engine::Copy, timed: false });
    }

    #[test]
    fn a_route_that_copies_is_left_and_looked_at_again() {
        let mut chooser = chooser();
        for _ in 0..COPIED_REPORTS {
            chooser.reported(Some(true));
        }
        let picks = run(&mut chooser, 1 << 20, LOOK_AGAIN as usize, 1, 1);
        assert_eq!(picks.iter().filter(|engine| **engine == Engine::UringZc).count(), 1);
        assert!(chooser.explain(1 << 20).reason.contains("reported"));
        chooser.reported(Some(false));
        assert_ne!(chooser.explain(1 << 20).engine, Engine::Copy);
    }

    #[test]
    fn a_failure_is_not_for_ever() {
        let mut chooser = chooser();
        chooser.failed("the limit is reached".to_owned());
        chooser.reported(Some(false));
        assert_eq!(chooser.explain(1 << 20).reason, "the limit is reached");
        let picks = run(&mut chooser, 1 << 20, LOOK_AGAIN as usize, 1, 1);
        assert_eq!(picks.last(), Some(&Engine::UringZc));
        chooser.reported(None);
        assert_eq!(chooser.explain(1 << 20).engine, Engine::UringZc);
    }

    #[test]
    fn no_report_settles_nothing() {
        let mut chooser = chooser();
        for _ in 0..100 {
            chooser.reported(None);
        }
        assert_eq!(chooser.explain(1 << 20).engine, Engine::UringZc);
    }

    #[test]
    fn a_wish_is_kept_and_a_missing_engine_explained() {
        let mut chooser = Chooser::new(Err("there is no ring".to_owned()), true);
        assert_eq!(
            chooser.explain(1 << 20),
            Choice { engine: Engine::Copy, reason: "there is no ring".into() }
        );
        chooser.wish(Engine::MsgZerocopy);
        assert_eq!(chooser.pick(1, || true), Pick { engine: Engine::MsgZerocopy, timed: false });
    }
}
