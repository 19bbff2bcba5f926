//! Puts back an interface whose guard is gone: kept on purpose, or left by a killed process.

use crate::kernel::Kernel;
use crate::state::{Directory, Journal, Record};
use crate::undo::{self, Undone};
use crate::{Error, Nic};

/// Puts the interface with this name back. The name that it had when it was prepared works too.
///
/// # Errors
///
/// [`Error::NotPrepared`] if it is not prepared; [`Error::Held`] while the process that prepared it lives,
/// or if something cannot be put back.
pub fn restore(name: &str, directory: &Directory) -> Result<Undone, Error> {
    let kernel = Kernel::open()?;
    let records = here(&kernel, directory)?;
    let link = kernel.links()?.into_iter().find(|link| link.name == name);
    // An interface that has the name now comes before one that had it earlier.
    let record = records
        .iter()
        .find(|record| link.as_ref().is_some_and(|link| link.index == record.key.index))
        .or_else(|| records.iter().find(|record| record.name == name));
    let Some(record) = record else {
        let reason = match link {
            Some(_) => format!("{name} is not prepared: there is nothing to restore"),
            None => format!("no network interface \"{name}\", and none was prepared"),
        };
        return Err(Error::NotPrepared { reason });
    };
    put_back(&kernel, record, directory)
}

/// Puts back all interfaces of the network namespace that no process holds.
///
/// # Errors
///
/// If the records cannot be read; the list says what happened to each interface.
pub fn restore_all(directory: &Directory) -> Result<Vec<Result<Undone, Error>>, Error> {
    let kernel = Kernel::open()?;
    let records = here(&kernel, directory)?;
    Ok(records.iter().map(|record| put_back(&kernel, record, directory)).collect())
}

/// The records of this network namespace.
fn here(kernel: &Kernel, directory: &Directory) -> Result<Vec<Record>, Error> {
    let mut records = directory.records()?;
    records.retain(|record| record.key.netns == kernel.netns);
    Ok(records)
}

impl Nic {
    /// The interface's record, if it is prepared.
    ///
    /// # Errors
    ///
    /// If the record cannot be read; only root may.
    pub fn record(&self, directory: &Directory) -> Result<Option<Record>, Error> {
        let record = directory.read(self.key)?;
        Ok(record.filter(|record| !record.is_of_the_past()))
    }
}

fn put_back(kernel: &Kernel, record: &Record, directory: &Directory) -> Result<Undone, Error> {
    let name = &record.name;
    let Some(lock) = directory.lock(record.key)? else {
        let holder = format!("{}: end it first", record.whose());
        return Err(Error::Held { name: name.clone(), holder });
    };
    // Read it again, under the lock.
    let Some(record) = directory.read(record.key)? else {
        return Ok(Undone { interface: name.clone(), ..Undone::default() });
    };
    undo::all(kernel, &mut Journal::new(directory, record, lock))
}
