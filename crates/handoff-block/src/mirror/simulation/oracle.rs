//! What reads may return, and which legs may be trusted.

use super::PLACES;
use crate::mirror::legs::Legs;

/// One sector of the device.
#[derive(Clone, Debug)]
struct Place {
    /// What a cut of the power may leave, the oldest first.
    versions: Vec<u64>,
    /// The last acknowledged write, if no end came after it.
    known: Option<u64>,
    under_way: Option<u64>,
    /// A write failed for the caller: legs may differ, and so may reads.
    torn: bool,
    /// Writes that began or ended.
    moves: u64,
    /// All that was ever written.
    all: Vec<u64>,
}

/// A read under way, or a flush.
pub(super) type Moves = Vec<u64>;
pub(super) type Known = Vec<Option<u64>>;

/// Data that belongs together. There are several if somebody demands a start without legs that have all: they may
/// start without it some day, too.
#[derive(Clone, Debug)]
struct Line {
    places: Vec<Place>,
    /// Legs that have all of it.
    current: Legs,
    /// Some of these were there when somebody demanded another line.
    passed: bool,
    /// Acknowledged writes.
    acknowledged: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct Oracle {
    lines: Vec<Line>,
    /// The one that is served, or was served last.
    served: usize,
    /// Sets that somebody demanded, and whose start was cut off.
    demanded: Vec<Legs>,
    /// Whether anybody ever demanded anything.
    pub(super) forced: bool,
    /// The first claim that does not hold.
    pub(super) wrong: Option<String>,
}

impl Oracle {
    pub(super) fn new(legs: usize) -> Self {
        let place = Place {
            versions: vec![0],
            known: Some(0),
            under_way: None,
            torn: false,
            moves: 0,
            all: vec![0],
        };
        let line = Line {
            places: vec![place; PLACES],
            current: Legs::first(legs),
            passed: false,
            acknowledged: Vec::new(),
        };
        Self { lines: vec![line], served: 0, demanded: Vec::new(), forced: false, wrong: None }
    }

    fn line(&mut self) -> &mut Line {
        &mut self.lines[self.served]
    }

    fn places(&self) -> &[Place] {
        &self.lines[self.served].places
    }

    /// Legs that have all data of the line that is served.
    pub(super) fn current(&self) -> Legs {
        self.lines[self.served].current
    }

    pub(super) fn says_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    pub(super) fn is_idle(&self, place: usize) -> bool {
        self.places()[place].under_way.is_none()
    }

    pub(super) fn is_torn(&self, place: usize) -> bool {
        self.places()[place].torn
    }

    pub(super) fn write_begins(&mut self, place: usize, value: u64) {
        let place = &mut self.line().places[place];
        place.under_way = Some(value);
        place.versions.push(value);
        place.all.push(value);
        place.moves += 1;
    }

    /// The answer: the legs that have it, or an error.
    pub(super) fn write_ends(&mut self, place: usize, value: u64, legs: Result<Legs, ()>) {
        let line = self.line();
        let place = &mut line.places[place];
        place.under_way = None;
        place.moves += 1;
        place.torn = legs.is_err();
        place.known = legs.is_ok().then_some(value);
        if let Ok(legs) = legs {
            line.current = line.current.common(legs);
            line.acknowledged.push(value);
        }
    }

    pub(super) fn flush_begins(&self) -> Known {
        self.places().iter().map(|place| place.known).collect()
    }

    pub(super) fn flush_ends(&mut self, known: &Known, legs: Result<Legs, ()>) {
        let Ok(legs) = legs else { return };
        let line = self.line();
        line.current = line.current.common(legs);
        for (place, known) in line.places.iter_mut().zip(known) {
            let first = place.versions.iter().position(|version| Some(*version) == *known);
            place.versions.drain(..first.unwrap_or_default());
        }
    }

    pub(super) fn read_begins(&self) -> Moves {
        self.places().iter().map(|place| place.moves).collect()
    }

    pub(super) fn read_ends(&mut self, number: usize, before: &Moves, bytes: &[u8]) {
        let place = &mut self.line().places[number];
        if place.under_way.is_some() || place.torn || place.moves != before[number] {
            return;
        }
        let words: Vec<_> = bytes.chunks_exact(8).collect();
        let value = u64::from_le_bytes(words[0].try_into().expect("8 bytes"));
        let allowed = match place.known {
            Some(known) => value == known,
            None => place.versions.contains(&value),
        };
        if !allowed || words.iter().any(|word| word != &words[0]) {
            let what = format!("place {number} has {value}: {place:?}");
            return self.says_wrong(what);
        }
        // What survived an end, and was read, stays.
        if place.known.is_none() {
            place.known = Some(value);
            place.versions = vec![value];
        }
    }

    /// The mirror is gone, and with `cut` all that was not flushed may be.
    pub(super) fn ends(&mut self, cut: bool) {
        for place in self.lines.iter_mut().flat_map(|line| &mut line.places) {
            let is_settled = place.versions.len() == 1;
            if place.under_way.take().is_some() || place.torn || cut && !is_settled {
                place.known = None;
            }
        }
    }

    /// The mirror serves with some of the legs that are here.
    pub(super) fn starts(&mut self, in_use: Legs, here: Legs, demanded: bool) {
        let home = self.lines.iter().position(|line| in_use.is_within(line.current));
        let wrong = self.guessed(in_use, here, home);
        let asked = self.demanded.iter().position(|asked| in_use.is_within(*asked));
        // Legs that a demand, cut off since, left out without need have the same data, and may go on alone, too.
        let leaves_out = |home: usize| !self.lines[home].current.is_within(in_use);
        match (home, wrong, asked) {
            (Some(home), None, asked) if !demanded && (asked.is_none() || !leaves_out(home)) => {
                self.served = home;
                self.lines[home].passed = false;
            }
            (_, Some(wrong), None) if !demanded => self.says_wrong(wrong),
            (_, _, asked) => {
                // Somebody demanded it, perhaps before an end.
                if let Some(asked) = asked {
                    self.demanded.remove(asked);
                }
                self.serves_as_demanded(in_use, here, home);
            }
        }
        self.line().places.iter_mut().for_each(|place| place.torn = false);
    }

    /// Somebody demanded a start with some of the legs that are here, and it was cut off. Perhaps it has told the others.
    pub(super) fn cut_off_demand(&mut self, in_use: Legs, here: Legs) {
        self.demanded.push(in_use);
        let given_up = here.without(in_use);
        for line in self.lines.iter_mut().filter(|line| !in_use.is_within(line.current)) {
            line.passed |= !given_up.common(line.current).is_empty();
        }
    }

    /// Why such a start trusts by guess.
    fn guessed(&self, in_use: Legs, here: Legs, home: Option<usize>) -> Option<String> {
        let Some(home) = home else {
            let right: Vec<_> = self.lines.iter().map(|line| line.current).collect();
            return Some(format!("{in_use} trusted by guess: right are {right:?}"));
        };
        let lost = self.lines.iter().find(|other| {
            let is_here = !other.passed && !here.common(other.current).is_empty();
            is_here && !self.lines[home].acknowledged.starts_with(&other.acknowledged)
        })?;
        Some(format!("{in_use} trusted by guess: {} have other data", lost.current))
    }

    /// Whoever demands it takes what there is.
    fn serves_as_demanded(&mut self, in_use: Legs, here: Legs, home: Option<usize>) {
        let mut line = self.lines[home.unwrap_or(self.served)].clone();
        if home.is_none() {
            let all = self.lines.iter().flat_map(|line| line.places.iter());
            let all: Vec<_> = all.flat_map(|place| place.all.iter().copied()).collect();
            for place in &mut line.places {
                place.versions = all.clone();
                place.known = None;
            }
            line.acknowledged.clear();
        }
        line.current = in_use;
        line.passed = false;
        for other in &mut self.lines {
            other.passed |= !here.common(other.current).is_empty();
            other.current = other.current.without(in_use);
        }
        self.lines.retain(|line| !line.current.is_empty());
        self.served = self.lines.len();
        self.lines.push(line);
    }
}
