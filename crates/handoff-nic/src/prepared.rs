//! An interface with queues set aside, for as long as the guard lives.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use handoff_sys::netlink::Refusal;
use rustix::io::Errno;

use crate::change::Standing;
use crate::kernel::Kernel;
use crate::plan::leading;
use crate::settings::Ring;
use crate::state::{Directory, Journal, Key, Record};
use crate::undo::{self, Outcome, Undone};
use crate::{Change, Error, Flow, Nic, Plan, Step};

/// What guards share: the last of them may outlive the one that prepared.
#[derive(Debug)]
struct Shared {
    kernel: Kernel,
    index: u32,
    name: String,
    /// `None` once everything was put back, or is kept.
    journal: Mutex<Option<Journal>>,
}

/// An interface that was prepared. Dropping it puts everything back; what fails then is logged, and
/// stays in the record, so that [`restore`](crate::restore) can try again. That also is the way after
/// an end of the process without drops.
#[derive(Debug)]
pub struct Prepared {
    shared: Arc<Shared>,
    queues: Vec<u32>,
    steps: Vec<Step>,
}

/// A flow that was led to a queue; dropping it takes the rule away, as does the end of the
/// [`Prepared`] that it is from.
#[derive(Debug)]
pub struct Steered {
    shared: Arc<Shared>,
    /// `None` where another rule does it already.
    rule: Option<Change>,
    queue: u32,
}

impl Prepared {
    /// Prepares the interface with this name in the network namespace of the calling thread. Each
    /// step is written down, made, and read back; what was done before one that fails is undone.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] with all that stands in the way, [`Error::Usage`] for a plan that makes
    /// no sense, [`Error::Failed`] where the interface is prepared already, or the kernel refuses.
    pub fn new(name: &str, plan: &Plan, directory: &Directory) -> Result<Self, Error> {
        let nic = Nic::look(name)?;
        Plan::possible(&nic)?;
        let kernel = Kernel::open()?;
        let key = Key { netns: kernel.netns, index: nic.index };
        let held = directory.lock(key)?;
        if let Some(record) = directory.read(key)?.filter(|record| !record.is_of_the_past()) {
            return Err(taken(&record, name, held.is_some()));
        }
        let lock = held.ok_or_else(|| {
            Error::failed(format!("{name} is being prepared or restored by another process"))
        })?;
        // Read anew: whoever held it until now has put it back meanwhile.
        let nic = Nic::again(&kernel, key.index)?.ok_or_else(|| gone(name))?;
        let target = plan.on(&nic)?;
        // Before anything is written down: the errors of what is not possible.
        target.steps(&nic)?;
        if nic.rings.is_some_and(|rings| rings.splits()) {
            // A driver may split because it likes to. That reads the same, but a queue can be bound
            // only if it was asked for; where it was, asking again changes nothing.
            kernel
                .set_ring(nic.index, Ring::DataSplit, Ring::SPLIT)
                .map_err(Error::doing(format!("{name}: header/data split: on")))?;
        }
        let record = Record::new(key, name, &nic.address, &target.queues);
        let journal = Mutex::new(Some(Journal::new(directory, record, lock)));
        let shared = Shared { kernel, index: nic.index, name: name.to_owned(), journal };
        let mut prepared =
            Self { shared: Arc::new(shared), queues: target.queues.clone(), steps: Vec::new() };
        // Read anew after each step: what is left follows from how it stands.
        let outcome = loop {
            match prepared.shared.look().and_then(|nic| target.steps(&nic)) {
                Err(error) => break Err(error),
                Ok(steps) => match steps.into_iter().next() {
                    None => break Ok(()),
                    Some(step) => {
                        if let Err(error) = prepared.shared.carry_out(&step.change) {
                            break Err(error);
                        }
                        tracing::info!("{name}: {}", step.text);
                        prepared.steps.push(step);
                    }
                },
            }
        };
        match outcome {
            Ok(()) => Ok(prepared),
            Err(error) => Err(match prepared.undo() {
                Ok(undone) if undone.put_back.is_empty() => error,
                Ok(undone) => error.and(&format!("; put back: {}", undone.put_back.join(", "))),
                Err(worse) => error.and(&format!("; and putting back failed: {worse}")),
            }),
        }
    }

    /// Name that the interface had.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The queues that were set aside, in ascending order.
    pub fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// What was done.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Leads one more flow to one of the queues, such as that of a connection just accepted. Packets
    /// that arrived before are where the host's own traffic goes.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a queue that was not set aside, [`Error::Failed`] where another rule
    /// leads the flow elsewhere, or there is no room.
    pub fn steer(&self, flow: Flow, queue: u32) -> Result<Steered, Error> {
        if !self.queues.contains(&queue) {
            let cause = format!("queue {queue} of {} was not set aside", self.name());
            return Err(Error::usage(cause));
        }
        let rule = leading(&self.shared.look()?, &flow, queue)?;
        if let Some(rule) = &rule {
            self.shared.carry_out(rule).inspect_err(|_| self.shared.take_back(rule))?;
        }
        Ok(Steered { shared: Arc::clone(&self.shared), rule, queue })
    }

    /// Leaves everything as it is, for [`restore`](crate::restore), with the rules of [`Steered`]
    /// guards; returns where it is written down.
    ///
    /// # Errors
    ///
    /// Where that cannot be written; then everything is put back.
    pub fn keep(self) -> Result<PathBuf, Error> {
        let mut journal = self.shared.journal();
        let kept = journal.as_mut().expect("not put back yet");
        kept.record.kept = true;
        kept.write()?;
        let path = kept.path();
        *journal = None;
        Ok(path)
    }

    /// Puts everything back.
    ///
    /// # Errors
    ///
    /// What could not be put back; it is still written down.
    pub fn undo(self) -> Result<Undone, Error> {
        self.shared.undo().expect("not put back yet")
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        match self.shared.undo() {
            Some(Ok(undone)) => {
                for left in undone.left {
                    tracing::warn!("{}: left as it is: {left}", undone.interface);
                }
            }
            Some(Err(error)) => tracing::warn!("{error}"),
            None => {}
        }
    }
}

/// An interface that is prepared is not prepared once more.
fn taken(record: &Record, name: &str, may_be_restored: bool) -> Error {
    let remedy = match may_be_restored {
        true => format!(": handoff nic restore {name}"),
        false => String::new(),
    };
    Error::failed(format!("{name} {}{remedy}", record.whose()))
}

fn gone(name: &str) -> Error {
    Error::failed(format!("{name} is gone"))
}

impl Steered {
    /// The queue that it goes to.
    pub fn queue(&self) -> u32 {
        self.queue
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        if let Some(rule) = &self.rule {
            self.shared.take_back(rule);
        }
    }
}

impl Shared {
    fn journal(&self) -> MutexGuard<'_, Option<Journal>> {
        // The record is written before each change, so it is right after a panic too.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> Result<Nic, Error> {
        let nic = Nic::again(&self.kernel, self.index)?;
        nic.ok_or_else(|| gone(&self.name))
    }

    /// Writes a change down, makes it, and looks that it is.
    fn carry_out(&self, change: &Change) -> Result<(), Error> {
        let mut journal = self.journal();
        let Some(journal) = journal.as_mut() else {
            return Err(Error::failed(format!("{} is not prepared any more", self.name)));
        };
        journal.record.changes.push(change.clone());
        journal.write()?;
        change.make(&self.kernel, self.index).map_err(|refusal| self.refused(change, refusal))?;
        let standing = change.standing(&self.kernel, self.index);
        match standing.map_err(Error::doing(format!("reading back {change}")))? {
            Standing::After => Ok(()),
            Standing::Before => Err(self.not_set(change, "is as before")),
            Standing::Other(how) => Err(self.not_set(change, &how)),
        }
    }

    fn refused(&self, change: &Change, refusal: Refusal) -> Error {
        let name = &self.name;
        if matches!(change, Change::Rule { .. }) && refusal.is(Errno::NOSPC.raw_os_error()) {
            let cause = format!("{name}: {change}: the table of rules is full: ethtool -n {name}");
            return Error::failed(cause);
        }
        Error::doing(format!("{name}: {change}"))(refusal)
    }

    fn not_set(&self, change: &Change, how: &str) -> Error {
        let name = &self.name;
        Error::failed(format!(
            "{name}: {change}: the driver took it, but the {} {how}",
            change.subject()
        ))
    }

    /// Undoes one change alone.
    fn take_back(&self, change: &Change) {
        let mut journal = self.journal();
        let Some(journal) = journal.as_mut() else { return };
        let Some(at) = journal.record.changes.iter().rposition(|other| other == change) else {
            return;
        };
        let gone = matches!(undo::find(&self.kernel, &journal.record), Ok(None));
        let outcome = match gone {
            true => Ok(Outcome::Nothing),
            false => undo::one(&self.kernel, self.index, change),
        };
        // What stays in the record is tried again with all the rest.
        let forgotten = outcome.and_then(|_| {
            journal.record.changes.remove(at);
            journal.write()
        });
        if let Err(error) = forgotten {
            tracing::warn!("{}: {error}", self.name);
        }
    }

    /// Undoes everything, once.
    fn undo(&self) -> Option<Result<Undone, Error>> {
        let mut journal = self.journal().take()?;
        Some(undo::all(&self.kernel, &mut journal))
    }
}
