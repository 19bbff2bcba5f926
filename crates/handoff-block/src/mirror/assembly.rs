//! A mirror of legs with records is put together: what [`decide`] says becomes durable before anybody uses the device.
//!
//! Contracts:
//! - nothing is written unless the mirror starts;
//! - whatever is written when it is cut off, the next start understands it. A leg that fails ends it.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bitmap::Bitmap;
use super::equal::{self, Leg, Progress, Watch};
use super::hints::{self, Hint};
use super::leg_record::{Copies, Unreadable};
use super::legs::Legs;
use super::start::{Ask, Named, Says, Start, decide, uuid};
use super::{layout, making, room};
use crate::backing::{Backing, Refused, stand_in_of_new};
use crate::device;
use crate::error::Error;
use crate::record::RecordedMirror;
use crate::spec::{MirrorStart, Spec};

/// Bytes that are made equal before their bits are cleared.
const GROUP: u64 = 1 << 30;

/// A mirror that was put together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Assembly {
    /// Its legs, by number; an empty path for one that is not there.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) mirror: RecordedMirror,
    /// Legs that are out, each with an error number.
    pub(crate) out: Vec<(usize, i32)>,
}

/// A leg that answers.
struct Opened {
    leg: Leg,
    /// Its length, in whole blocks.
    len: u64,
    /// What it says, if it has a record.
    copies: Option<Box<Copies>>,
}

/// Puts a mirror together, of legs in the order in which they were named. Returns its backings by number.
pub(crate) fn assemble(
    spec: &Spec,
    start: &MirrorStart,
    named: Vec<Result<Backing, Refused>>,
    watch: &mut Watch<'_>,
) -> Result<(Assembly, Vec<Backing>), Error> {
    assemble_with(spec, start, named, watch, Path::new(hints::DIRECTORY))
}

/// The same, with hints in this directory.
fn assemble_with(
    spec: &Spec,
    start: &MirrorStart,
    named: Vec<Result<Backing, Refused>>,
    watch: &mut Watch<'_>,
    directory: &Path,
) -> Result<(Assembly, Vec<Backing>), Error> {
    let mut legs = Vec::new();
    for (path, backing) in spec.files.iter().zip(&named) {
        legs.push(backing.as_ref().ok().map(|backing| Opened::of(path, backing)).transpose()?);
    }
    if let MirrorStart::Create { keep_first } = start {
        let legs: Vec<_> = legs.iter().flatten().map(|it| (&it.leg, it.len)).collect();
        making::make(&legs, *keep_first, watch)?;
    }
    let hints = hints::read(directory);
    let said: Vec<_> = legs
        .iter_mut()
        .zip(&named)
        .zip(&spec.files)
        .map(|((leg, backing), path)| say(leg.as_mut(), backing.as_ref().err(), path, &hints))
        .collect();
    let decided =
        decide(&said, ask(spec, start)?).map_err(|refused| Error::unusable(refused.to_string()))?;
    let mut going = Going::of(&decided, &legs);
    going.make_good(spec.read_only, watch)?;
    if spec.check {
        let in_use: Vec<_> = decided.in_use.iter().map(|leg| &going.leg(leg).leg).collect();
        equal::check(&in_use, decided.record.layout.size, watch)?;
    }
    let (notes, hints) = (std::mem::take(&mut going.notes), going.hints());
    let record = &decided.record;
    let uuid = uuid(&record.uuid);
    if let Err(error) = hints::write(directory, &uuid, &hints) {
        tracing::warn!(
            "where the legs end is not written down in {}: {error}",
            directory.display()
        );
    }
    let mirror = RecordedMirror {
        uuid,
        chunk_shift: record.layout.chunk_shift,
        ends: hints.iter().map(|hint| hint.end).collect(),
        notes,
    };
    let files = hints.into_iter().map(|hint| hint.path).collect();
    let number = |leg: usize| if decided.legs[leg].is_some() { libc::ESTALE } else { libc::ENODEV };
    let out = Legs::first(record.legs).without(decided.in_use);
    let out = out.iter().map(|leg| (leg, number(leg))).collect();
    let mut named: Vec<_> = named.into_iter().map(Result::ok).collect();
    let mut backings = Vec::new();
    for place in &decided.legs {
        let opened = place.and_then(|place| named[place].take());
        let mut backing = opened.map_or_else(stand_in_of_new, Ok)?;
        if place.is_some() {
            backing.facts.part.size = record.layout.size;
        }
        backings.push(backing);
    }
    Ok((Assembly { files, mirror, out }, backings))
}

fn ask(spec: &Spec, start: &MirrorStart) -> Result<Ask, Error> {
    let trust = match start {
        MirrorStart::Trust(trusted) => {
            let place = spec.files.iter().position(|path| path == trusted);
            Some(place.ok_or_else(|| {
                Error::invalid(format!(
                    "{} is trusted and is not among the legs: name it there, too",
                    trusted.display()
                ))
            })?)
        }
        _ => None,
    };
    Ok(Ask { degraded: *start == MirrorStart::Degraded, trust, change: device::token()? })
}

impl Opened {
    fn of(path: &Path, backing: &Backing) -> Result<Self, Error> {
        let file = backing.file.as_fd().try_clone_to_owned();
        let file = File::from(file.map_err(Error::doing("a file cannot be opened again"))?);
        let leg = Leg { path: path.to_owned(), file };
        Ok(Self { leg, len: backing.facts.part.size, copies: None })
    }
}

/// What a named leg says.
fn say(leg: Option<&mut Opened>, refused: Option<&Refused>, path: &Path, hints: &[Hint]) -> Named {
    let path = path.display().to_string();
    let Some(leg) = leg else {
        let reason = refused.map(|refused| refused.error.to_string()).unwrap_or_default();
        return Named { path, end: 0, says: Says::Absent(reason) };
    };
    let end = layout::end(leg.len);
    let says = match read(leg, end, hints) {
        Ok(says) => says,
        Err(error) => Says::Absent(format!("{path} cannot be read: {error}")),
    };
    if let Says::Record(copies) = &says {
        leg.copies = Some(copies.clone());
    }
    Named { path, end, says }
}

/// Reads a leg's record, where it is or was.
fn read(leg: &Opened, end: u64, hints: &[Hint]) -> io::Result<Says> {
    let Opened { leg: Leg { path, file }, len, .. } = leg;
    file.sync_data()?;
    match find(file, end, hints)? {
        Ok(copies) => return Ok(Says::Record(copies.into())),
        Err(Unreadable::Damaged) => return Ok(Says::Damaged),
        Err(Unreadable::Newer(version)) => return Ok(Says::Newer(version)),
        Err(Unreadable::Nothing) => {}
    }
    let before = hints.iter().find(|hint| hint.path == *path && hint.end > end);
    Ok(before.map_or(Says::Nothing, |hint| Says::Shrunk(hint.end, *len)))
}

/// Looks for a record at the end of a leg, and where legs ended before they grew.
fn find(file: &File, end: u64, hints: &[Hint]) -> io::Result<Result<Copies, Unreadable>> {
    let found = room::peek_record(file, end)?;
    if found != Err(Unreadable::Nothing) {
        return Ok(found);
    }
    for hint in hints.iter().filter(|hint| hint.end < end) {
        if let Ok(copies) = room::peek_record(file, hint.end)? {
            return Ok(Ok(copies));
        }
    }
    Ok(found)
}

/// The mirror of which a disk or file is a leg, by UUID, whether or not anybody serves it; `None` if it is none.
///
/// # Errors
///
/// Of reading it.
pub fn mirror_of(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let end = layout::end(file.seek(SeekFrom::End(0))?);
    let found = find(&file, end, &hints::read(Path::new(hints::DIRECTORY)))?;
    Ok(found.ok().map(|copies| uuid(&copies.record.uuid)))
}

/// A start that was decided.
struct Going<'a> {
    start: &'a Start,
    /// By number.
    legs: Vec<Option<&'a Opened>>,
    notes: Vec<String>,
}

impl<'a> Going<'a> {
    fn of(start: &'a Start, named: &'a [Option<Opened>]) -> Self {
        let legs = start.legs.iter().map(|place| named[(*place)?].as_ref()).collect();
        Self { start, legs, notes: start.notes.clone() }
    }

    fn leg(&self, leg: usize) -> &'a Opened {
        self.legs[leg].expect("it has a record")
    }

    fn hints(&self) -> Vec<Hint> {
        let hint = |leg: &Option<&Opened>| match leg {
            Some(leg) => {
                let end = leg.copies.as_ref().map_or(0, |copies| copies.record.end);
                Hint { path: leg.leg.path.clone(), end }
            }
            None => Hint { path: PathBuf::new(), end: 0 },
        };
        self.legs.iter().map(hint).collect()
    }

    fn copies(&self, leg: usize) -> &'a Copies {
        self.leg(leg).copies.as_ref().expect("it has a record")
    }

    /// Makes durable what was decided.
    fn make_good(&mut self, read_only: bool, watch: &mut Watch<'_>) -> Result<(), Error> {
        let start = self.start;
        let mut bitmap = self.bitmap()?;
        let is_good = start.write.with(start.overrule).is_empty() && bitmap.set().next().is_none();
        if read_only {
            return match is_good {
                true => Ok(()),
                false => Err(Error::unusable(
                    "the legs of the mirror do not all say the same yet: start it once without --read-only",
                )),
            };
        }
        for leg in start.overrule.iter().chain(start.write.iter()) {
            self.write_record(leg)?;
        }
        if bitmap.set().next().is_some() {
            self.make_equal(&mut bitmap, watch)?;
        }
        for leg in start.tell.iter() {
            if let Err(error) = self.write_record(leg) {
                tracing::warn!("{error}");
            }
        }
        Ok(())
    }

    fn write_record(&self, leg: usize) -> Result<(), Error> {
        let Start { record, in_use, .. } = self.start;
        let copies = self.copies(leg);
        let next = match in_use.has(leg) {
            true => record.on(&copies.record),
            false => record.told_to(&copies.record),
        };
        let Leg { path, file } = &self.leg(leg).leg;
        room::write_record(file, &next, copies.order())
            .map_err(Leg::failed(path, "does not take the record of the mirror"))
    }

    /// The bits of all legs in use.
    fn bitmap(&mut self) -> Result<Bitmap, Error> {
        let record = &self.start.record;
        let mut bitmap = Bitmap::clear(record.uuid, record.layout.chunks());
        for leg in self.start.in_use.iter() {
            let Leg { path, file } = &self.leg(leg).leg;
            let whole = room::read_bitmap(file, &self.copies(leg).record, &mut bitmap)
                .map_err(Leg::failed(path, "cannot be read"))?;
            if !whole {
                let path = path.display();
                self.notes.push(format!(
                    "the bitmap of {path} is damaged: what it stands for counts as written"
                ));
            }
        }
        Ok(bitmap)
    }

    /// Gives all legs in use the dirty chunks of the first one. A start that is cut off goes on where it was.
    fn make_equal(&mut self, bitmap: &mut Bitmap, watch: &mut Watch<'_>) -> Result<(), Error> {
        let Start { record, in_use, .. } = self.start;
        let layout = record.layout;
        let dirty: Vec<_> = bitmap.set().collect();
        self.write_bitmap(bitmap, 0..layout.pages() as usize)?;
        let legs: Vec<_> = in_use.iter().map(|leg| &self.leg(leg).leg).collect();
        legs.iter().try_for_each(|leg| leg.flush())?;
        let bytes = |chunk: &usize| layout.bytes_of(*chunk);
        let all: u64 = dirty.iter().map(bytes).map(|range| range.end - range.start).sum();
        if let [first, _, ..] = legs[..] {
            let first = first.path.display();
            self.notes
                .push(format!("{all} bytes may have differed: the legs have those of {first}"));
        }
        let mut progress = Progress::of(all, watch);
        for group in dirty.chunks((GROUP >> layout.chunk_shift).max(1) as usize) {
            for chunk in group {
                equal::copy(&legs, bytes(chunk), &mut progress)?;
            }
            legs.iter().try_for_each(|leg| leg.flush())?;
            for chunk in group {
                bitmap.put(*chunk, false);
            }
            let pages = [group[0], group[group.len() - 1]].map(Bitmap::page_of);
            self.write_bitmap(bitmap, pages[0]..pages[1] + 1)?;
        }
        Ok(())
    }

    /// Writes pages of the bitmap to all legs in use, and does not flush them.
    fn write_bitmap(&self, bitmap: &Bitmap, pages: std::ops::Range<usize>) -> Result<(), Error> {
        for leg in self.start.in_use.iter() {
            let Leg { path, file } = &self.leg(leg).leg;
            room::write_bitmap(file, &self.copies(leg).record, bitmap, pages.clone())
                .map_err(Leg::failed(path, "cannot be written"))?;
        }
        Ok(())
    }
}

/// Refuses legs of a mirror without records that have some: what is written to them would not be recorded. Compares the
/// others, if that was asked for.
pub(crate) fn check_unrecorded(
    spec: &Spec,
    backings: &[Backing],
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    let mut legs = Vec::new();
    for (path, backing) in spec.files.iter().zip(backings) {
        let leg = Opened::of(path, backing)?;
        if let Ok(Ok(copies)) = room::read_record(&leg.leg.file, layout::end(leg.len))
            && !spec.read_only
        {
            return Err(Error::unusable(format!(
                "{} is leg {} of the mirror {}: start that without --no-record",
                path.display(),
                copies.record.leg,
                uuid(&copies.record.uuid)
            )));
        }
        legs.push(leg);
    }
    if spec.check {
        let size = legs.iter().map(|leg| leg.len).min().unwrap_or_default();
        equal::check(&legs.iter().map(|leg| &leg.leg).collect::<Vec<_>>(), size, watch)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
