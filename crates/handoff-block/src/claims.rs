//! Which device has a file.
//!
//! Contracts:
//! - a device has its files until the driver no longer has the device, also while it waits for a server and nobody
//!   has them open: what the record says ([`Record`](crate::state::Record)) is the claim, by the files' identity;
//! - whoever makes a device looks for others of its files, and writes its own record, before anybody else looks
//!   ([`Making`]).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;

use crate::bytes::Bytes;
use crate::control::{Control, DeviceState};
use crate::error::Error;
use crate::record::Part;
use crate::state::{DIRECTORY, Directory, make_base};

/// What all layouts of a record have of its claim.
#[derive(Deserialize)]
struct Claim {
    made: u64,
    parts: Vec<Part>,
    spec: Names,
}

#[derive(Deserialize)]
struct Names {
    files: Vec<PathBuf>,
}

/// The device that has some bytes.
pub(crate) struct Holder {
    id: u32,
    /// By its name when the device was made.
    file: PathBuf,
    waits: bool,
}

impl Holder {
    /// Why a file cannot be used for another device.
    pub(crate) fn refuses(&self, path: &Path) -> Error {
        let (name, id) = (path.display(), self.id);
        let by = match self.file == path {
            true => String::new(),
            false => format!(" as {}", self.file.display()),
        };
        let reason = match self.waits {
            true => format!(
                "{name} belongs{by} to device {id}, which waits for a server: handoff blk recover {id}, or \
                 handoff blk del {id}"
            ),
            false => format!("{name} is in use{by} by device {id}: handoff blk del {id} first"),
        };
        Error::InUse { path: path.to_owned(), reason }
    }
}

/// The device that has bytes of this file or disk.
pub(crate) fn holder(control: &mut Control, part: &Part) -> Option<Holder> {
    if part.is_nothing() {
        return None;
    }
    let bytes = Bytes::of(part);
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let mut ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find_map(|id| {
        let text = fs::read(Directory::of(id).record_path()).ok()?;
        let Claim { made, parts, spec } = serde_json::from_slice(&text)
            .inspect_err(|error| {
                tracing::warn!("what device {id} was made of is not known: {error}")
            })
            .ok()?;
        let index = parts
            .iter()
            .position(|theirs| theirs.is_still(part) && Bytes::of(theirs).meet(&bytes))?;
        let found = control.find(id).ok()?.filter(|found| found.made == made)?;
        let waits = matches!(found.state, DeviceState::Quiesced | DeviceState::FailIo);
        Some(Holder { id, file: spec.files.get(index).cloned().unwrap_or_default(), waits })
    })
}

/// Nobody else makes a device while this exists.
#[derive(Debug)]
pub(crate) struct Making {
    _lock: File,
}

impl Making {
    /// Begins to make a device of these files, which no other device has.
    pub(crate) fn begin<'a>(
        control: &mut Control,
        files: impl Iterator<Item = (&'a Path, &'a Part)>,
    ) -> Result<Self, Error> {
        let locked = || -> std::io::Result<File> {
            make_base()?;
            let file = File::open(DIRECTORY)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        let lock = locked().map_err(Error::doing(DIRECTORY))?;
        for (path, part) in files {
            if let Some(holder) = holder(control, part) {
                return Err(holder.refuses(path));
            }
        }
        Ok(Self { _lock: lock })
    }
}
