//! Who counts as in when a mirror starts: a function of what the legs say.
//!
//! If a leg has data that another leg lacks, then its own record says that the other leg is out. So the set of a record
//! has all data that the present legs know of, if no record contradicts it: each other one came before it, or has all
//! of that set in use. A set goes on only with all of its legs. So a record that came before is over, since one of its
//! legs made the change, or was told.
//!
//! A leg that was told that it is out has a say only against those who count it, or who know less.

use super::layout::Layout;
use super::leg_record::{Copies, LegRecord, VERSION};
use super::legs::Legs;

/// What a leg that somebody named says.
#[derive(Clone, Debug)]
pub(super) enum Says {
    Record(Box<Copies>),
    /// It has no record.
    Nothing,
    /// It has none, and it was longer when it had one: bytes before and now.
    Shrunk(u64, u64),
    /// Neither copy can be read.
    Damaged,
    /// It is not there, or does not answer: why, with its path.
    Absent(String),
    /// By a newer program.
    Newer(u32),
}

/// A leg as it was named, in the order of the command line.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) path: String,
    /// Where it ends now.
    pub(super) end: u64,
    pub(super) says: Says,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ask {
    /// Start without legs that have all the data and are missing.
    pub(super) degraded: bool,
    /// Use the data of this one of the named legs, whatever others say.
    pub(super) trust: Option<usize>,
    /// A random number that no other change has, not 0.
    pub(super) change: u64,
}

/// How a mirror starts. Nothing has been written yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// By leg: which of the named ones it is.
    pub(super) legs: Vec<Option<usize>>,
    /// Legs in use. All of them have a bitmap that counts, and the first one has what becomes of dirty chunks.
    pub(super) in_use: Legs,
    /// What the records of all legs in use must say durably before anything else is done.
    pub(super) record: LegRecord,
    /// Legs in use whose records do not say it yet, or not in both copies.
    pub(super) write: Legs,
    /// Legs that have other data and lose it. Before all else, their records must say durably that they are out.
    pub(super) overrule: Legs,
    /// Other legs that are out and do not know it. They are told after all else, if they take it.
    pub(super) tell: Legs,
    /// What the user should know, a line each.
    pub(super) notes: Vec<String>,
}

/// Why a mirror does not start, and what to type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("no leg of the mirror is named")]
    NoLeg,
    #[error(
        "{path}: a newer handoff wrote the record (version {version}, and this one reads up to {VERSION}): use that one"
    )]
    Newer { path: String, version: u32 },
    #[error("{reason}, and no other leg is named")]
    NoneHere { reason: String },
    #[error(
        "{path} has no record of a mirror: make one with --create, leave this leg out, or go without records by --no-record"
    )]
    NoRecord { path: String },
    #[error(
        "{path} has {now} bytes and had {before} as a leg, so its record is cut off: enlarge it again, or leave it out"
    )]
    Shrunk { path: String, before: u64, now: u64 },
    #[error(
        "both copies of the record of {path} are damaged, and no other leg is named: name another leg"
    )]
    AllDamaged { path: String },
    #[error(
        "{path} and {other} are legs of different mirrors ({uuid}, {other_uuid}): name the legs of one"
    )]
    OtherMirror { path: String, uuid: String, other: String, other_uuid: String },
    #[error(
        "{path} and {other} are both leg {leg}: one is a copy, or the same disk by another name; leave one out"
    )]
    Twice { path: String, other: String, leg: usize },
    #[error(
        "the records of {path} and {other} disagree about the mirror's shape: leave one of them out"
    )]
    Disagree { path: String, other: String },
    #[error(
        "{missing} may have newer data and cannot be read: bring it back, or start without it by --degraded"
    )]
    Missing { missing: Legs },
    #[error(
        "all that is here went out before {missing}: bring that back, or take the older data of {path} by --trust {path}"
    )]
    Stale { missing: Legs, path: String },
    /// A start that somebody demanded was cut off.
    #[error("each leg that is here says that it is out: keep the data of one by --trust LEG")]
    AllOut,
    #[error(
        "{path} and {other} were each in use without the other: keep the data of one by --trust {path} or --trust {other}"
    )]
    Split { path: String, other: String },
    #[error("{path} cannot be trusted, since it has no record that can be read: trust another leg")]
    NotTrusted { path: String },
}

/// A named leg with a record.
struct Present<'a> {
    named: usize,
    path: &'a str,
    copies: &'a Copies,
    record: &'a LegRecord,
}

/// Whether the other leg says that the set of a record lacks data, or may lack some.
fn contradicts(other: &LegRecord, record: &LegRecord) -> bool {
    let is_within = record.in_use.is_within(other.in_use);
    if !other.is_in() {
        let knows_more = other.generation > record.generation;
        return record.in_use.has(other.leg) || knows_more && !is_within;
    }
    !record.follows(other) && !is_within
}

/// Decides who counts as in.
pub(super) fn decide(named: &[Named], ask: Ask) -> Result<Start, Refused> {
    let mut notes = Vec::new();
    let present = read(named, &mut notes)?;
    let trusted = match ask.trust {
        Some(trusted) => {
            Some(present.iter().find(|leg| leg.named == trusted).ok_or_else(|| {
                let path = named.get(trusted).map_or_else(String::new, |leg| leg.path.clone());
                Refused::NotTrusted { path }
            })?)
        }
        None => None,
    };
    let here: Legs = present.iter().map(|leg| leg.record.leg).collect();
    let right = trusted.map_or_else(|| newest(&present), Ok)?;
    let counted = right.record.in_use;
    let own = Legs::one(right.record.leg);
    let in_use = match trusted {
        Some(_) if !own.is_within(counted) => own,
        // Legs that say the same as the trusted one, or said so before.
        Some(_) => {
            let agrees =
                |leg: &&Present<'_>| leg.record.is_in() && right.record.follows(leg.record);
            let agree = present.iter().filter(agrees).map(|leg| leg.record.leg).collect();
            counted.common(agree).with(own)
        }
        None => counted.common(here),
    };
    let missing = counted.without(here);
    if !missing.is_empty() && !ask.degraded && trusted.is_none() {
        return Err(Refused::Missing { missing });
    }
    let proposed = LegRecord { in_use, ..right.record.clone() };
    let is_against =
        |leg: &&Present<'_>| leg.named != right.named && contradicts(leg.record, &proposed);
    let against: Vec<_> = present.iter().filter(is_against).collect();
    let record = if in_use == counted && against.is_empty() {
        right.record.clone()
    } else {
        let generation = present.iter().map(|leg| leg.record.generation).max().unwrap_or_default();
        // So the next start knows that they lost.
        let others = against.iter().filter(|leg| !right.record.follows(leg.record));
        let mut over: Vec<_> = others.map(|leg| leg.record.changes[0]).collect();
        over.dedup();
        right.record.changed(in_use, ask.change, over, generation + 1)
    };
    let legs_that = |what: &dyn Fn(&Present<'_>) -> bool| -> Legs {
        present.iter().filter(|leg| what(leg)).map(|leg| leg.record.leg).collect()
    };
    let write = legs_that(&|leg| {
        leg.record.changes[0] != record.changes[0] || leg.copies.differ || leg.record.is_new()
    });
    let overrule = against.iter().map(|leg| leg.record.leg).collect::<Legs>().without(in_use);
    let tell = legs_that(&|leg| leg.record.is_in()).without(in_use).without(overrule);
    let out = Legs::first(record.legs).without(in_use);
    if !out.is_empty() {
        notes.push(format!("{out} of the mirror {} out: the data is on {in_use} only", verb(out)));
    }
    let mut legs = vec![None; record.legs];
    present.iter().for_each(|leg| legs[leg.record.leg] = Some(leg.named));
    let write = write.common(in_use);
    Ok(Start { legs, in_use, record, write, overrule, tell, notes })
}

fn verb(legs: Legs) -> &'static str {
    if legs.iter().count() == 1 { "is" } else { "are" }
}

/// The record that nobody contradicts, of the greatest generation.
fn newest<'a, 'b>(present: &'b [Present<'a>]) -> Result<&'b Present<'a>, Refused> {
    let mut order: Vec<_> = present.iter().collect();
    order.sort_by_key(|leg| (std::cmp::Reverse(leg.record.generation), leg.record.leg));
    let against = |leg: &Present<'_>| {
        order.iter().copied().find(|other| contradicts(other.record, leg.record))
    };
    let mut candidates = order.iter().copied().filter(|leg| leg.record.is_in());
    if let Some(right) = candidates.clone().find(|leg| against(leg).is_none()) {
        return Ok(right);
    }
    let first = candidates.next().unwrap_or(order[0]);
    let path = first.path.to_owned();
    match against(first) {
        Some(other) if other.record.is_in() => {
            Err(Refused::Split { path, other: other.path.to_owned() })
        }
        told => {
            let here = present.iter().map(|leg| leg.record.leg).collect();
            match told.unwrap_or(first).record.in_use.without(here) {
                Legs(0) => Err(Refused::AllOut),
                missing => Err(Refused::Stale { missing, path }),
            }
        }
    }
}

/// Reads what the named legs say, and refuses what does not belong together.
fn read<'a>(named: &'a [Named], notes: &mut Vec<String>) -> Result<Vec<Present<'a>>, Refused> {
    let mut present: Vec<Present<'a>> = Vec::new();
    let (mut damaged, mut absent) = (None, None);
    for (number, leg) in named.iter().enumerate() {
        let path = leg.path.clone();
        match &leg.says {
            Says::Newer(version) => return Err(Refused::Newer { path, version: *version }),
            Says::Nothing => return Err(Refused::NoRecord { path }),
            Says::Shrunk(before, now) => {
                return Err(Refused::Shrunk { path, before: *before, now: *now });
            }
            Says::Damaged => {
                notes.push(format!("{path} does not count: both copies of its record are damaged"));
                damaged = damaged.or(Some(path));
            }
            Says::Absent(reason) => {
                notes.push(format!("{reason}, so it does not count"));
                absent = absent.or(Some(reason));
            }
            Says::Record(copies) => {
                let record = &copies.record;
                check(&leg.path, record, &present)?;
                if copies.differ {
                    notes.push(format!("one copy of the record of {path} is damaged or older"));
                }
                if record.end < leg.end {
                    notes.push(format!("{path} grew: what was added is not used"));
                }
                if record.leg != number && named.len() == record.legs {
                    notes.push(format!("{path} is leg {}, named as leg {number}", record.leg));
                }
                present.push(Present { named: number, path: &leg.path, copies, record });
            }
        }
    }
    match (present.is_empty(), damaged, absent) {
        (false, ..) => Ok(present),
        (true, Some(path), _) => Err(Refused::AllDamaged { path }),
        (true, None, Some(reason)) => Err(Refused::NoneHere { reason: reason.clone() }),
        (true, None, None) => Err(Refused::NoLeg),
    }
}

/// Whether a leg goes with those before it.
fn check(path: &str, record: &LegRecord, present: &[Present<'_>]) -> Result<(), Refused> {
    let Some(first) = present.first() else { return Ok(()) };
    let (path, other) = (path.to_owned(), first.path.to_owned());
    if record.uuid != first.record.uuid {
        let (uuid, other_uuid) = (uuid(&record.uuid), uuid(&first.record.uuid));
        return Err(Refused::OtherMirror { path, uuid, other, other_uuid });
    }
    if let Some(same) = present.iter().find(|leg| leg.record.leg == record.leg) {
        return Err(Refused::Twice { path, other: same.path.to_owned(), leg: record.leg });
    }
    let shape = |record: &LegRecord| -> (usize, Layout) { (record.legs, record.layout) };
    if shape(record) != shape(first.record) {
        return Err(Refused::Disagree { path, other });
    }
    Ok(())
}

/// A UUID as text.
pub(super) fn uuid(bytes: &[u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| digits[part].to_owned());
    parts.join("-")
}

#[cfg(test)]
mod tests;
