//! Legs with volatile caches, and what the mirror has under way on them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

pub(super) const SECTOR: usize = 512;
pub(super) type Sector = [u8; SECTOR];

/// Numbers that a seed decides.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True once in so many times.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// One leg. A sector is written whole or not at all; sectors that were not flushed may be lost, each by itself.
#[derive(Default)]
pub(super) struct Disk {
    durable: BTreeMap<u64, Sector>,
    /// Written and not flushed, in order.
    cache: Vec<(u64, Sector)>,
    /// How many have left the cache.
    drained: usize,
    /// So many of the next requests fail.
    pub(super) failing: usize,
}

impl Disk {
    pub(super) fn read(&self, at: u64) -> Sector {
        let cached = self.cache.iter().rev().find(|(sector, _)| *sector == at);
        cached
            .map(|(_, bytes)| *bytes)
            .or_else(|| self.durable.get(&at).copied())
            .unwrap_or([0; SECTOR])
    }

    /// Durably, by nobody.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        for (sector, bytes) in (at..).zip(bytes.chunks_exact(SECTOR)) {
            self.durable.insert(sector, bytes.try_into().expect("a sector"));
        }
    }

    /// The medium went bad there.
    pub(super) fn write_back(&mut self, at: u64, bytes: Sector) {
        self.drained += self.cache.len();
        self.durable.extend(self.cache.drain(..));
        self.durable.insert(at, bytes);
    }

    fn flush(&mut self, until: usize) {
        let count = until.saturating_sub(self.drained).min(self.cache.len());
        self.drained += count;
        self.durable.extend(self.cache.drain(..count));
    }

    fn cut_power(&mut self, random: &mut Random) {
        let mut versions: BTreeMap<u64, Vec<Sector>> = BTreeMap::new();
        self.drained += self.cache.len();
        self.cache.drain(..).for_each(|(at, bytes)| versions.entry(at).or_default().push(bytes));
        let style = random.below(4);
        for (at, versions) in versions {
            // Any of them, or what was there.
            let kept = match style {
                0 => 0,
                1 => versions.len(),
                _ => random.below(versions.len() + 1),
            };
            if kept > 0 {
                self.durable.insert(at, versions[kept - 1]);
            }
        }
    }
}

#[derive(Clone)]
pub(super) enum Ask {
    Read {
        at: u64,
        sectors: usize,
    },
    Write {
        at: u64,
        bytes: Vec<u8>,
    },
    /// What was written before is durable when it is over.
    Flush {
        until: usize,
    },
}

struct UnderWay {
    number: u64,
    leg: usize,
    ask: Ask,
}

/// The answer of a leg: what was read.
pub(super) type Answer = Result<Vec<u8>, ()>;

/// All legs, and what is under way on them.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) legs: Vec<Disk>,
    under_way: Vec<UnderWay>,
    answers: BTreeMap<u64, Answer>,
    number: u64,
}

pub(super) type Shared = Rc<RefCell<World>>;

impl World {
    pub(super) fn new(random: Random, legs: usize) -> Self {
        Self {
            random,
            legs: (0..legs).map(|_| Disk::default()).collect(),
            under_way: Vec::new(),
            answers: BTreeMap::new(),
            number: 0,
        }
    }

    /// Completes one of the requests, in any order. `false`: none is under way.
    pub(super) fn complete(&mut self) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        let chosen = self.random.below(self.under_way.len());
        let UnderWay { number, leg, ask } = self.under_way.swap_remove(chosen);
        let disk = &mut self.legs[leg];
        let fails = disk.failing > 0;
        disk.failing = disk.failing.saturating_sub(1);
        let answer = match ask {
            _ if fails => {
                if let Ask::Write { at, bytes } = ask {
                    self.apply_some(leg, at, &bytes);
                }
                Err(())
            }
            Ask::Read { at, sectors } => {
                Ok((at..).take(sectors).flat_map(|at| disk.read(at)).collect())
            }
            Ask::Write { at, bytes } => {
                let sectors = bytes.chunks_exact(SECTOR).map(|it| it.try_into().expect("a sector"));
                disk.cache.extend((at..).zip(sectors));
                Ok(Vec::new())
            }
            Ask::Flush { until } => {
                disk.flush(until);
                Ok(Vec::new())
            }
        };
        self.answers.insert(number, answer);
        true
    }

    /// A write that failed, or was under way at an end, has reached any of its sectors.
    fn apply_some(&mut self, leg: usize, at: u64, bytes: &[u8]) {
        for (at, bytes) in (at..).zip(bytes.chunks_exact(SECTOR)) {
            if self.random.once_in(2) {
                self.legs[leg].cache.push((at, bytes.try_into().expect("a sector")));
            }
        }
    }

    /// Nobody waits for the answers any more.
    pub(super) fn abandon(&mut self) {
        while !self.under_way.is_empty() {
            let chosen = self.random.below(self.under_way.len());
            let UnderWay { leg, ask, .. } = self.under_way.swap_remove(chosen);
            if let Ask::Write { at, bytes } = ask {
                self.apply_some(leg, at, &bytes);
            }
        }
        self.answers.clear();
    }

    pub(super) fn cut_power(&mut self) {
        self.abandon();
        self.legs.iter_mut().for_each(|leg| leg.cut_power(&mut self.random));
    }
}

/// A request that is under way from now on.
pub(super) struct Going {
    world: Shared,
    number: u64,
}

impl Future for Going {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.world.borrow_mut().answers.remove(&self.number);
        answer.map_or(Poll::Pending, Poll::Ready)
    }
}

pub(super) fn submit(world: &Shared, leg: usize, ask: Ask) -> Going {
    let mut inner = world.borrow_mut();
    inner.number += 1;
    let number = inner.number;
    inner.under_way.push(UnderWay { number, leg, ask });
    Going { world: Rc::clone(world), number }
}

pub(super) fn write(world: &Shared, leg: usize, at: u64, bytes: &[u8]) -> Going {
    submit(world, leg, Ask::Write { at: at / SECTOR as u64, bytes: bytes.to_vec() })
}

pub(super) fn read(world: &Shared, leg: usize, at: u64, bytes: usize) -> Going {
    submit(world, leg, Ask::Read { at: at / SECTOR as u64, sectors: bytes / SECTOR })
}

pub(super) fn flush(world: &Shared, leg: usize) -> Going {
    let until = {
        let leg = &world.borrow().legs[leg];
        leg.drained + leg.cache.len()
    };
    submit(world, leg, Ask::Flush { until })
}
