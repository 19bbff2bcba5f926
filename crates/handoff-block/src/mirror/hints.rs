//! Where legs ended, written down beside the system: so a leg that grew or was cut off is told from one without a
//! record. Nothing depends on it.
//!
//! Contracts: `/var/lib/handoff/mirrors/UUID.json` has path and end of each leg, by its number, as of the last start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where the hints of all mirrors are.
pub(super) const DIRECTORY: &str = "/var/lib/handoff/mirrors";

/// A leg of a mirror when it was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hint {
    pub(super) path: PathBuf,
    pub(super) end: u64,
}

/// The hints of all mirrors.
pub(super) fn read(directory: &Path) -> Vec<Hint> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "json"));
    let texts = files.filter_map(|entry| fs::read(entry.path()).ok());
    texts.filter_map(|text| serde_json::from_slice::<Vec<Hint>>(&text).ok()).flatten().collect()
}

/// Writes down where the legs of a mirror end, whole or not at all. A leg that is not here keeps its hint.
pub(super) fn write(directory: &Path, uuid: &str, legs: &[Hint]) -> io::Result<()> {
    let path = directory.join(format!("{uuid}.json"));
    let before = fs::read(&path).unwrap_or_default();
    let known: Vec<Hint> = serde_json::from_slice(&before).unwrap_or_default();
    let each = legs.iter().enumerate().map(|(leg, hint)| match known.get(leg) {
        Some(known) if hint.end == 0 => known,
        _ => hint,
    });
    let text = serde_json::to_vec(&each.collect::<Vec<_>>())?;
    if text == before {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    let new = directory.join(format!("{uuid}.new"));
    fs::write(&new, text)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_that_is_away_keeps_its_hint() {
        let place = tempfile::tempdir().expect("a directory");
        let place = place.path().join("mirrors");
        assert_eq!(read(&place), []);
        let hint = |path: &str, end| Hint { path: path.into(), end };
        let both = [hint("/a", 4096), hint("/b", 8192)];
        write(&place, "1", &both).expect("written");
        write(&place, "1", &[hint("/c", 4096), hint("", 0)]).expect("written");
        assert_eq!(read(&place), [hint("/c", 4096), hint("/b", 8192)]);
        fs::write(place.join("2.json"), "no hints").expect("written");
        assert_eq!(read(&place).len(), 2);
    }
}
