//! An interface with queues set aside, for as long as the guard lives.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use handoff_sys::netlink::Refusal;
use rustix::io::Errno;

use crate::change::Standing;
use crate::kernel::Kernel;
use crate::plan::leading;
use crate::settings::Ring;
use crate::state::{Directory, Journal, Record};
use crate::undo::{self, Outcome, Undone};
use crate::{Change, Error, Flow, Lease, Nic, Plan, Step, Wanted};

/// What the guards share: the last of them may outlive [`Prepared`].
#[derive(Debug)]
struct Shared {
    kernel: Kernel,
    index: u32,
    name: String,
    /// `None` once everything is put back, or kept.
    ledger: Mutex<Option<Ledger>>,
}

/// What is to be put back.
#[derive(Debug)]
struct Ledger {
    journal: Journal,
    /// The rule of each [`Steered`]; a rule goes with the last one.
    held: Vec<Change>,
}

/// A prepared interface. Dropping it puts everything back; what fails then is logged, and stays in the
/// record, so that [`restore`](crate::restore) can try again. `restore` also helps if the process ended
/// without drops.
///
/// ```no_run
/// use handoff_nic::{Directory, Flow, Plan, Prepared, Wanted};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let plan = Plan { queues: Wanted::Count(2), ..Plan::default() };
/// let prepared = Prepared::new("eth0", &plan, &Directory::default())?;
/// let (local, remote) = ("10.0.0.1:8000".parse()?, "10.0.0.2:4711".parse()?);
/// let steered = prepared.steer(Flow::connection(local, remote)?, prepared.queues()[1])?;
/// println!("{remote} arrives at queue {}", steered.queue());
/// drop(steered); // removes the rule
/// let undone = prepared.undo()?; // as a drop, with what was put back
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Prepared {
    shared: Arc<Shared>,
    queues: Vec<u32>,
    steps: Vec<Step>,
}

/// A flow that is steered to a queue. Dropping this removes the rule, unless another guard's flow needs it; dropping the
/// [`Prepared`] that made it removes the rule in any case.
///
/// [`Prepared::steer`] returns it.
#[derive(Debug)]
pub struct Steered {
    shared: Arc<Shared>,
    /// `None` if a rule does it that is nobody's guard's.
    rule: Option<Change>,
    queue: u32,
}

impl Prepared {
    /// Prepares the interface with this name in the network namespace of the calling thread. Each step
    /// is recorded, made, and read back; if a step fails, the steps before it are undone.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] with all that stands in the way; [`Error::Invalid`] for a plan that makes no
    /// sense; [`Error::Held`] if the interface is prepared already; what the kernel refuses.
    pub fn new(name: &str, plan: &Plan, directory: &Directory) -> Result<Self, Error> {
        Self::made(name, plan, None, directory)
    }

    /// As [`new`](Self::new), and leases the queues to an interface that it makes in another network namespace.
    ///
    /// # Errors
    ///
    /// As those of `new`.
    pub fn leased(
        name: &str,
        queues: Wanted,
        hardware_gro: bool,
        lease: &Lease,
        directory: &Directory,
    ) -> Result<Self, Error> {
        Self::made(name, &lease.plan(queues, hardware_gro), Some(lease), directory)
    }

    fn made(
        name: &str,
        plan: &Plan,
        lease: Option<&Lease>,
        directory: &Directory,
    ) -> Result<Self, Error> {
        let nic = Nic::look(name)?;
        Plan::possible(&nic)?;
        let kernel = Kernel::open()?;
        let key = nic.key;
        let held = directory.lock(key)?;
        if let Some(record) = directory.read(key)?.filter(|record| !record.is_of_the_past()) {
            return Err(taken(&record, name, held.is_some()));
        }
        let lock = held.ok_or_else(|| Error::Held {
            name: name.to_owned(),
            holder: "is being prepared or restored by another process".to_owned(),
        })?;
        // Read it again: a previous holder has put things back meanwhile.
        let nic = Nic::again(&kernel, key.index)?.ok_or_else(|| gone(name))?;
        let target = plan.on(&nic)?;
        // Report what is not possible before anything is recorded.
        target.steps(&nic)?;
        let leasing = match lease {
            Some(lease) => lease.on(&kernel, &nic, &target.queues)?.to_vec(),
            None => Vec::new(),
        };
        if nic.rings.is_some_and(|rings| rings.splits()) {
            // A driver may split by its own choice. That reads the same, but a queue can be bound only
            // if splitting was asked for; asking again changes nothing.
            kernel
                .set_ring(nic.index, Ring::DataSplit, Ring::SPLIT)
                .map_err(Error::doing(format!("{name}: header/data split: on")))?;
        }
        let record = Record::new(key, name, &nic.address, &target.queues);
        let journal = Journal::new(directory, record, lock);
        let ledger = Mutex::new(Some(Ledger { journal, held: Vec::new() }));
        let shared = Shared { kernel, index: nic.index, name: name.to_owned(), ledger };
        let mut prepared =
            Self { shared: Arc::new(shared), queues: target.queues.clone(), steps: Vec::new() };
        // Read it again after each step: the remaining steps follow from the current settings.
        let outcome = loop {
            match prepared.shared.look().and_then(|nic| target.steps(&nic)) {
                Err(error) => break Err(error),
                Ok(steps) => match steps.into_iter().next() {
                    None => break Ok(()),
                    Some(step) => {
                        if let Err(error) = prepared.take(step) {
                            break Err(error);
                        }
                    }
                },
            }
        };
        let lease =
            |()| leasing.into_iter().map(Step::from).try_for_each(|step| prepared.take(step));
        match outcome.and_then(lease) {
            Ok(()) => Ok(prepared),
            Err(error) => Err(match prepared.undo() {
                Ok(undone) if undone.put_back.is_empty() => error,
                Ok(undone) => {
                    error.after_undoing(format!("put back: {}", undone.put_back.join(", ")))
                }
                Err(worse) => error.after_undoing(format!("and putting back failed: {worse}")),
            }),
        }
    }

    fn take(&mut self, step: Step) -> Result<(), Error> {
        let mut ledger = self.shared.ledger();
        self.shared.carry_out(self.shared.open(&mut ledger)?, &step.change)?;
        drop(ledger);
        tracing::info!("{}: {}", self.name(), step.text);
        self.steps.push(step);
        Ok(())
    }

    /// The interface's name at that time.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The queues set aside, in ascending order.
    pub fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// The steps made.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Steers one more flow to one of the queues, such as a connection just accepted. Packets that
    /// arrived earlier stay with the host's own traffic.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a queue that is not set aside; [`Error::OtherRule`] if another rule steers
    /// the flow elsewhere, [`Error::RulesFull`] if the table is full.
    pub fn steer(&self, flow: Flow, queue: u32) -> Result<Steered, Error> {
        if !self.queues.contains(&queue) {
            let cause = format!("queue {queue} of {} was not set aside", self.name());
            return Err(Error::invalid(cause));
        }
        let mut ledger = self.shared.ledger();
        let ledger = self.shared.open(&mut ledger)?;
        let rule = match leading(&self.shared.look()?, &flow, queue, None)? {
            Some(rule) => {
                let made = self.shared.carry_out(ledger, &rule);
                made.inspect_err(|_| self.shared.take_back(ledger, &rule))?;
                Some(rule)
            }
            None => ledger.held.iter().find(|rule| rule.leads(&flow, queue)).cloned(),
        };
        ledger.held.extend(rule.clone());
        Ok(Steered { shared: Arc::clone(&self.shared), rule, queue })
    }

    /// Leaves everything as it is, for [`restore`](crate::restore), the rules of [`Steered`] guards too;
    /// returns the path of the record.
    ///
    /// # Errors
    ///
    /// If the record cannot be written; then everything is put back.
    pub fn keep(self) -> Result<PathBuf, Error> {
        let mut ledger = self.shared.ledger();
        let Ledger { journal, .. } = ledger.as_mut().expect("not put back yet");
        journal.record.kept = true;
        journal.write()?;
        let path = journal.path();
        *ledger = None;
        Ok(path)
    }

    /// Puts everything back.
    ///
    /// # Errors
    ///
    /// What could not be put back; it stays in the record.
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

/// Refuses to prepare an interface twice.
fn taken(record: &Record, name: &str, may_be_restored: bool) -> Error {
    let remedy = match may_be_restored {
        true => format!(": handoff nic restore {name}"),
        false => String::new(),
    };
    Error::Held { name: name.to_owned(), holder: format!("{}{remedy}", record.whose()) }
}

fn gone(name: &str) -> Error {
    Error::Gone { name: name.to_owned() }
}

impl Steered {
    /// The queue that the flow goes to.
    pub fn queue(&self) -> u32 {
        self.queue
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        let Some(rule) = &self.rule else { return };
        let mut ledger = self.shared.ledger();
        let Some(ledger) = ledger.as_mut() else { return };
        if let Some(at) = ledger.held.iter().position(|other| other == rule) {
            ledger.held.swap_remove(at);
        }
        if !ledger.held.contains(rule) {
            self.shared.take_back(ledger, rule);
        }
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Option<Ledger>> {
        // The record is written before each change, so it is right after a panic too.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open<'a>(&self, ledger: &'a mut Option<Ledger>) -> Result<&'a mut Ledger, Error> {
        let closed = || Error::NoLongerPrepared { name: self.name.clone() };
        ledger.as_mut().ok_or_else(closed)
    }

    fn look(&self) -> Result<Nic, Error> {
        let nic = Nic::again(&self.kernel, self.index)?;
        nic.ok_or_else(|| gone(&self.name))
    }

    /// Records a change, makes it, and checks it.
    fn carry_out(&self, ledger: &mut Ledger, change: &Change) -> Result<(), Error> {
        let Ledger { journal, .. } = ledger;
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
            let (interface, change) = (name.clone(), change.to_string());
            return Error::RulesFull { interface, change, source: refusal.error };
        }
        if let Change::Pair(pair) = change
            && refusal.is(Errno::EXIST.raw_os_error())
        {
            let device = pair.device.clone();
            let reason = format!(
                "{name}: {}: {refusal}: {device} exists there: choose another name (--device)",
                change.subject()
            );
            return Error::DeviceExists { device, reason };
        }
        if matches!(change, Change::Pair(_)) && refusal.is(Errno::OPNOTSUPP.raw_os_error()) {
            let reason = format!(
                "{name}: {}: {refusal}: it takes a kernel that leases queues to netkit devices \
                 (Linux 7.1, CONFIG_NETKIT)",
                change.subject()
            );
            return Error::NotPossible { reason, source: Some(refusal.error) };
        }
        Error::doing(format!("{name}: {change}"))(refusal)
    }

    fn not_set(&self, change: &Change, how: &str) -> Error {
        let name = &self.name;
        let reason =
            format!("{name}: {change}: the driver took it, but the {} {how}", change.subject());
        Error::NotSet { reason }
    }

    /// Undoes one change.
    fn take_back(&self, ledger: &mut Ledger, change: &Change) {
        let Ledger { journal, .. } = ledger;
        let Some(at) = journal.record.changes.iter().rposition(|other| other == change) else {
            return;
        };
        let gone = matches!(undo::find(&self.kernel, &journal.record), Ok(None));
        let outcome = match gone {
            true => Ok(Outcome::Nothing),
            false => undo::one(&self.kernel, self.index, change),
        };
        // What stays in the record is tried again with the rest.
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
        let mut ledger = self.ledger().take()?;
        Some(undo::all(&self.kernel, &mut ledger.journal))
    }
}
