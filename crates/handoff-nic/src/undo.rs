//! Puts an interface back by its record, from the last change to the first.

use std::thread;
use std::time::{Duration, Instant};

use handoff_sys::netlink::Refusal;
use serde::Serialize;

use crate::change::Standing;
use crate::kernel::Kernel;
use crate::link::Link;
use crate::queues::list;
use crate::state::{Journal, Record};
use crate::{Change, Error};

/// How long the kernel may take to free the queues of a closed ring.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// What happened to the changes of an interface.
///
/// [`Prepared::undo`](crate::Prepared::undo) and [`restore`](crate::restore) return it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undone {
    /// The interface's name: its current one if it still exists.
    pub interface: String,
    /// Whether it is gone, and its settings with it.
    pub gone: bool,
    /// What was put back, in this order.
    pub put_back: Vec<String>,
    /// What somebody else has changed meanwhile; it stays as it is.
    pub left: Vec<String>,
}

/// The interface of a record, if it still exists.
pub(crate) fn find(kernel: &Kernel, record: &Record) -> Result<Option<Link>, Error> {
    let link = kernel.link(record.key.index)?;
    // Another interface may have got its number.
    let same = |link: &Link| link.name == record.name || link.address == record.address;
    Ok(link.filter(|link| same(link) && !record.is_of_the_past()))
}

/// Puts everything back. What cannot be put back stays in the record.
pub(crate) fn all(kernel: &Kernel, journal: &mut Journal) -> Result<Undone, Error> {
    let mut undone = Undone { interface: journal.record.name.clone(), ..Undone::default() };
    match find(kernel, &journal.record)? {
        Some(link) => undone.interface = link.name,
        None => undone.gone = true,
    }
    let is_of_the_past = journal.record.is_of_the_past();
    let (mut failed, mut unbound) = (Vec::new(), false);
    for at in (0..journal.record.changes.len()).rev() {
        let change = &journal.record.changes[at];
        let goes_first = matches!(change, Change::Pair(_) | Change::Redirect { .. });
        let outcome = match change {
            // It is reported without the card.
            Change::Pair(_) if !is_of_the_past => one(kernel, journal.record.key.index, change),
            _ if undone.gone => Ok(Outcome::Nothing),
            _ => {
                // The host's own traffic must not reach a queue that fills somebody's memory. A leased queue is
                // released with its pair, whatever the container has done with it.
                if !goes_first && !unbound {
                    let unbound_yet =
                        wait_until_unbound(kernel, &journal.record, &undone.interface);
                    if let Err(error) = unbound_yet {
                        failed.push(error.to_string());
                        break;
                    }
                    unbound = true;
                }
                // It goes with the last of our rules.
                let is_ours = |change: &Change| matches!(change, Change::Rule { .. });
                if change.is_for_rules() && journal.record.changes.iter().any(is_ours) {
                    continue;
                }
                one(kernel, journal.record.key.index, change)
            }
        };
        match outcome {
            Ok(outcome) => {
                match outcome {
                    Outcome::PutBack(text) => undone.put_back.push(text),
                    Outcome::Left(text) => undone.left.push(text),
                    Outcome::Nothing => {}
                }
                journal.record.changes.remove(at);
                // A record that still lists an undone change does no harm, so a full disk stops nothing.
                let _ = journal.write();
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    journal.record.kept &= !journal.record.changes.is_empty();
    failed.extend(journal.write().err().map(|error| error.to_string()));
    if failed.is_empty() {
        return Ok(undone);
    }
    Err(Error::NotPutBack {
        interface: undone.interface,
        failed: failed.join("; "),
        record: journal.path(),
    })
}

/// What happened to one change.
pub(crate) enum Outcome {
    PutBack(String),
    Left(String),
    /// It had not been made, or somebody else has undone it.
    Nothing,
}

/// Puts one change back, and checks the result.
pub(crate) fn one(kernel: &Kernel, index: u32, change: &Change) -> Result<Outcome, Error> {
    let subject = change.subject();
    let doing = || Error::doing(format!("putting back the {subject}"));
    match change.standing(kernel, index).map_err(doing())? {
        Standing::Before => return Ok(Outcome::Nothing),
        Standing::Other(how) => {
            return Ok(Outcome::Left(format!("{subject} {how}, by somebody else")));
        }
        Standing::After => {}
    }
    if change.is_for_rules() && has_rules(kernel, index).map_err(doing())? {
        return Ok(Outcome::Left(format!("{subject} stays on for rules of somebody else")));
    }
    change.undo(kernel, index).map_err(doing())?;
    match change.standing(kernel, index).map_err(doing())? {
        Standing::Before => Ok(Outcome::PutBack(subject)),
        _ => {
            let reason = format!("the driver took the old {subject}, but did not set it");
            Err(Error::NotSet { reason })
        }
    }
}

fn has_rules(kernel: &Kernel, index: u32) -> Result<bool, Refusal> {
    Ok(kernel.rules(index)?.is_some_and(|rules| !rules.rules.is_empty()))
}

fn wait_until_unbound(kernel: &Kernel, record: &Record, name: &str) -> Result<(), Error> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let is_last = Instant::now() > deadline;
        let queues = kernel
            .queues(record.key.index)
            .map_err(Error::doing(format!("reading the queues of {name}")))?;
        if queues.as_ref().is_some_and(Vec::is_empty) {
            let reason = format!(
                "it is down, and nobody can tell who has bound its queues: ip link set {name} up"
            );
            return Err(Error::Bound { reason });
        }
        let bound: Vec<u32> = queues
            .iter()
            .flatten()
            .filter(|queue| queue.bound.is_some() && record.queues.contains(&queue.id))
            .map(|queue| queue.id)
            .collect();
        if bound.is_empty() {
            return Ok(());
        }
        if is_last {
            let reason =
                format!("still bound by a program or a lease is {}: end that", list(&bound));
            return Err(Error::Bound { reason });
        }
        thread::sleep(PAUSE);
    }
}
