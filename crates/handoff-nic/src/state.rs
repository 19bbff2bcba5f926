//! The record of a prepared interface, so that it can be put back after a kill.
//!
//! `/run/handoff/nic/<netns cookie>-<ifindex>.json` says what was changed, and by whom. A change is
//! recorded before it is made; the file is replaced as a whole. Beside it is a lock, held while a
//! process changes the interface or keeps it prepared. So a record without a holder was left behind, or
//! kept on purpose.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::file;
use crate::{Change, Error};

/// Version of the file format.
const VERSION: u32 = 2;

/// Identifies an interface, also beside those of namespaces that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    #[serde(rename = "cookie")]
    pub(crate) netns: u64,
    pub(crate) index: u32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.netns, self.index)
    }
}

/// A process, told from a later one with the same number by its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// Its start time, in ticks since the machine booted.
    pub started: u64,
}

impl Owner {
    /// This process.
    pub(crate) fn me() -> Self {
        let pid = process::id();
        Self { pid, started: started(pid).unwrap_or(0) }
    }

    /// Whether it still exists.
    pub fn lives(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// The start time of a process; `None` if no process has this number.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which may contain blanks, is in parentheses; the start time is field 22.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The record of one interface.
///
/// [`Directory::records`] returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// The boot of the machine in which it was written.
    boot: String,
    #[serde(flatten)]
    pub(crate) key: Key,
    /// The interface's name at that time.
    pub name: String,
    /// Its hardware address.
    pub(crate) address: String,
    /// Who changed the interface.
    pub owner: Owner,
    /// Whether the interface stays prepared until it is restored.
    pub kept: bool,
    /// The queues set aside.
    pub queues: Vec<u32>,
    /// The changes, in order; the last one may not have been made yet.
    pub changes: Vec<Change>,
}

impl Record {
    pub(crate) fn new(key: Key, name: &str, address: &str, queues: &[u32]) -> Self {
        Self {
            version: VERSION,
            boot: boot(),
            key,
            name: name.to_owned(),
            address: address.to_owned(),
            owner: Owner::me(),
            kept: false,
            queues: queues.to_vec(),
            changes: Vec::new(),
        }
    }

    /// Whether the interface went with an earlier boot of the machine.
    pub(crate) fn is_of_the_past(&self) -> bool {
        self.boot != boot()
    }

    /// Who made the record, in a sentence.
    pub fn whose(&self) -> String {
        let pid = self.owner.pid;
        match (self.kept, self.owner.lives()) {
            (true, _) => "is prepared until it is restored".to_owned(),
            (false, true) => format!("is prepared by process {pid}"),
            (false, false) => format!("was left prepared by process {pid}, which is gone"),
        }
    }
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// The directory of the records.
///
/// ```no_run
/// use handoff_nic::{Directory, restore_all};
///
/// # fn main() -> Result<(), handoff_nic::Error> {
/// let directory = Directory::default(); // /run/handoff/nic
/// for record in directory.records()? {
///     println!("{}: queues {:?}, {}", record.name, record.queues, record.whose());
/// }
/// restore_all(&directory)?; // what no process holds
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
}

impl Default for Directory {
    fn default() -> Self {
        Self::at("/run/handoff/nic")
    }
}

impl Directory {
    /// A directory other than the machine's own, for tests: whoever prepares, shows and restores an
    /// interface must use the same one.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub(crate) fn record_path(&self, key: Key) -> PathBuf {
        self.path.join(format!("{key}.json"))
    }

    /// The record of an interface, if there is one.
    pub(crate) fn read(&self, key: Key) -> Result<Option<Record>, Error> {
        read(&self.path.join(format!("{key}.json")))
    }

    /// All records, of all network namespaces.
    ///
    /// # Errors
    ///
    /// If one cannot be read; only root may.
    pub fn records(&self) -> Result<Vec<Record>, Error> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(file(format!("reading {}", self.path.display())))?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(file(format!("reading {}", self.path.display())))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                records.extend(read(&path)?);
            }
        }
        records.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(records)
    }

    /// Locks an interface against others that would change it; `None` while another holds the lock.
    pub(crate) fn lock(&self, key: Key) -> Result<Option<Lock>, Error> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(file(format!("making {}", self.path.display())))?;
        let path = self.path.join(format!("{key}.lock"));
        let trouble = || file(format!("locking {}", path.display()));
        loop {
            let mut options = File::options();
            options.create(true).truncate(false).write(true).mode(0o600);
            let locked = options.open(&path).map_err(trouble())?;
            match flock(&locked, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                done => done.map_err(|errno| trouble()(io::Error::from(errno)))?,
            }
            // The previous holder may have removed the file after we opened it.
            let ours = locked.metadata().map_err(trouble())?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
                return Ok(Some(Lock { path, _locked: locked }));
            }
        }
    }
}

fn read(path: &Path) -> Result<Option<Record>, Error> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(file(format!("reading {}", path.display())))?,
    };
    let wrong = |fault: &str| Error::Record { path: path.to_owned(), fault: fault.to_owned() };
    let value: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    if value["version"] != VERSION {
        return Err(wrong("was written by another version of handoff: restore with that"));
    }
    let record = serde_json::from_value(value);
    Ok(Some(record.map_err(|error| wrong(&format!("cannot be read: {error}")))?))
}

/// Held by the one that may change an interface and its record.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    _locked: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked: whoever opens it from here on makes a new file.
        let _ = fs::remove_file(&self.path);
    }
}

/// The record of an interface that is being changed, and the lock.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: Directory,
    pub(crate) record: Record,
    _lock: Lock,
}

impl Journal {
    pub(crate) fn new(directory: &Directory, record: Record, lock: Lock) -> Self {
        Self { directory: directory.clone(), record, _lock: lock }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.record_path(self.record.key)
    }

    /// Writes the record, whole and for good; removes it if it has no changes, unless it is kept.
    pub(crate) fn write(&self) -> Result<(), Error> {
        let path = self.path();
        if self.record.changes.is_empty() && !self.record.kept {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(file(format!("removing {}", path.display()))(error))
                }
                _ => Ok(()),
            };
        }
        let write = || -> io::Result<()> {
            // The file's mode is 0600.
            let mut new = tempfile::NamedTempFile::new_in(&self.directory.path)?;
            new.write_all(&serde_json::to_vec(&self.record)?)?;
            new.as_file().sync_all()?;
            new.persist(&path).map_err(|error| error.error)?;
            File::open(&self.directory.path)?.sync_all()
        };
        write().map_err(file(format!("writing {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::{Flow, Ip};

    const KEY: Key = Key { netns: 4_711, index: 7 };

    fn record() -> Record {
        let mut record = Record::new(KEY, "eth7", "02:00:00:00:00:07", &[3]);
        record.changes.push(Change::Rule { flow: Flow::port(Ip::V4, 80), queue: 3, context: None });
        record
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_only_by_us() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = Directory::at(place.path().join("below/nic"));
        let lock = directory.lock(KEY).expect("locks").expect("is free");
        let mut journal = Journal::new(&directory, record(), lock);
        journal.write().expect("writes");
        let path = journal.path();
        assert_eq!(path.file_name().expect("has one"), "4711-7.json");
        let mode = fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(directory.read(KEY).expect("reads"), Some(record()));
        assert_eq!(directory.records().expect("reads"), [record()]);
        journal.record.changes.clear();
        journal.write().expect("removes");
        assert!(!path.exists());
        journal.write().expect("removes what is not there");
        drop(journal);
        assert_eq!(fs::read_dir(&directory.path).expect("reads").count(), 0);
    }

    #[test]
    fn a_lock_is_held_once_and_free_again() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = Directory::at(place.path());
        let held = directory.lock(KEY).expect("locks").expect("is free");
        assert!(directory.lock(KEY).expect("asks").is_none());
        let other = Key { index: 8, ..KEY };
        assert!(directory.lock(other).expect("asks").is_some());
        drop(held);
        assert!(directory.lock(KEY).expect("asks").is_some());
    }

    #[test]
    fn a_lock_is_held_once_by_many() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = Directory::at(place.path());
        let holders = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Some(lock) = directory.lock(KEY).expect("asks") else { continue };
                        use std::sync::atomic::Ordering::SeqCst;
                        assert_eq!(holders.fetch_add(1, SeqCst), 0);
                        holders.fetch_sub(1, SeqCst);
                        drop(lock);
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_broken_or_of_another_version_is_told() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = Directory::at(place.path());
        for (text, expected) in [
            ("{", "cannot be read"),
            ("{\"version\": 1}", "another version"),
            ("{\"version\": 2}", "missing field"),
        ] {
            fs::write(directory.record_path(KEY), text).expect("writes");
            let error = directory.read(KEY).expect_err("wrong").to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(Directory::at("/nowhere/at/all").records().expect("none").is_empty());
    }

    #[test]
    fn a_process_is_told_from_a_later_one() {
        let me = Owner::me();
        assert!(me.lives() && me.started > 0);
        assert!(!Owner { started: me.started - 1, ..me }.lives());
        let mut other = record();
        assert_eq!(other.whose(), format!("is prepared by process {}", me.pid));
        other.owner.started -= 1;
        assert!(other.whose().contains("which is gone"));
        assert!(!other.is_of_the_past());
        other.boot = "another".to_owned();
        assert!(other.is_of_the_past());
    }
}
