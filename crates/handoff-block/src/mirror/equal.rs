//! Whether legs have the same bytes, and how they come to have them.
//!
//! All is read in pieces, of all legs at once, into memory that O_DIRECT takes. Only what differs is written: so a
//! file keeps its holes, and a disk is not worn.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use super::page::PAGE;
use crate::Error;

/// Bytes read at a time, and the least that is compared and written.
const STEP: u64 = 4 << 20;
const BLOCK: usize = 64 << 10;

/// Hears how far a long step of a mirror's start is: bytes done, and of all. The start goes on if this returns true.
pub(crate) type Watch<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// How far a long step is.
pub(crate) struct Progress<'a> {
    done: u64,
    all: u64,
    watch: &'a mut Watch<'a>,
}

impl<'a> Progress<'a> {
    pub(crate) fn of(all: u64, watch: &'a mut Watch<'a>) -> Self {
        Self { done: 0, all, watch }
    }

    fn add(&mut self, bytes: u64) -> Result<(), Error> {
        self.done += bytes;
        if (self.watch)(self.done, self.all) {
            return Ok(());
        }
        let waited_for = Error::unusable("the legs of the mirror are being read");
        Err(Error::Stopped { waited_for: Box::new(waited_for) })
    }
}

/// A leg that is open.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

impl Leg {
    pub(crate) fn failed(path: &Path, what: &str) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::doing(format!("{} {what}", path.display()))
    }

    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(Self::failed(&self.path, "cannot be flushed"))
    }
}

/// Memory at a multiple of a page.
struct Piece {
    bytes: Vec<u8>,
    start: usize,
}

impl Piece {
    fn new() -> Self {
        let bytes = vec![0; (STEP + PAGE) as usize];
        let start = bytes.as_ptr().align_offset(PAGE as usize);
        Self { bytes, start }
    }

    fn first(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..][..len]
    }
}

/// Reads the same place of all legs.
fn read(
    legs: &[&Leg],
    pieces: &mut [Piece],
    Range { start, end }: Range<u64>,
) -> Result<(), Error> {
    let len = (end - start) as usize;
    let read = |(leg, piece): (&&Leg, &mut Piece)| {
        let read = leg.file.read_exact_at(piece.first(len), start);
        read.map_err(Leg::failed(&leg.path, "cannot be read"))
    };
    thread::scope(|scope| {
        let readers: Vec<_> =
            legs.iter().zip(pieces).map(|each| scope.spawn(move || read(each))).collect();
        readers.into_iter().try_for_each(|reader| {
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(STEP as usize).map(move |start| start..end.min(start + STEP))
}

/// The first byte that differs, and the leg that has another one than the first leg.
pub(crate) fn difference<'a>(
    legs: &[&'a Leg],
    size: u64,
    progress: &mut Progress<'_>,
) -> Result<Option<(&'a Path, u64)>, Error> {
    let mut pieces: Vec<_> = legs.iter().map(|_| Piece::new()).collect();
    for range in steps(0..size) {
        let len = (range.end - range.start) as usize;
        read(legs, &mut pieces, range.clone())?;
        let [one, others @ ..] = &mut pieces[..] else { break };
        let one = one.first(len);
        for (leg, other) in legs[1..].iter().zip(others) {
            let other = other.first(len);
            if one != other {
                let at = one.iter().zip(&*other).position(|(one, other)| one != other);
                return Ok(Some((&leg.path, range.start + at.unwrap_or_default() as u64)));
            }
        }
        progress.add(len as u64)?;
    }
    Ok(None)
}

/// Refuses legs that differ.
pub(crate) fn check(legs: &[&Leg], size: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
    match (legs, difference(legs, size, &mut Progress::of(size, watch))?) {
        ([first, ..], Some((other, at))) => Err(Error::Io {
            action: format!(
                "{} and {} differ from byte {at} on",
                first.path.display(),
                other.display()
            ),
            source: io::Error::other("copy the good one over the other"),
        }),
        _ => Ok(()),
    }
}

/// Gives the other legs what the first one has in a range, and flushes nothing.
pub(crate) fn copy(
    legs: &[&Leg],
    range: Range<u64>,
    progress: &mut Progress<'_>,
) -> Result<(), Error> {
    let mut pieces: Vec<_> = legs.iter().map(|_| Piece::new()).collect();
    for range in steps(range) {
        let len = (range.end - range.start) as usize;
        read(legs, &mut pieces, range.clone())?;
        let [one, others @ ..] = &mut pieces[..] else { break };
        let one = one.first(len);
        for (leg, other) in legs[1..].iter().zip(others) {
            write_differing(leg, range.start, one, other.first(len))?;
        }
        progress.add(len as u64)?;
    }
    Ok(())
}

/// Writes the blocks of a leg that differ, those beside each other at once.
fn write_differing(leg: &Leg, start: u64, bytes: &[u8], has: &[u8]) -> Result<(), Error> {
    if bytes == has {
        return Ok(());
    }
    let blocks = bytes.chunks(BLOCK).zip(has.chunks(BLOCK));
    let differ: Vec<_> = blocks.map(|(one, other)| one != other).collect();
    let mut at = 0;
    for run in differ.chunk_by(|one, other| one == other) {
        let from = at * BLOCK;
        at += run.len();
        if run[0] {
            #[cfg(test)]
            super::room::take_write().map_err(Leg::failed(&leg.path, "cannot be written"))?;
            let part = &bytes[from..bytes.len().min(at * BLOCK)];
            leg.file
                .write_all_at(part, start + from as u64)
                .map_err(Leg::failed(&leg.path, "cannot be written"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn leg(bytes: &[u8]) -> Leg {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(bytes, 0).expect("written");
        Leg { path: "leg".into(), file }
    }

    fn bytes(leg: &Leg) -> Vec<u8> {
        let mut bytes = vec![0; leg.file.metadata().expect("there").len() as usize];
        leg.file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    #[test]
    fn legs_become_equal_and_no_more_is_written_than_differs() {
        let len = STEP as usize + 3 * BLOCK + 4096;
        let mut good = vec![0; len];
        let places = [5, BLOCK, STEP as usize + BLOCK, len - 1];
        places.iter().for_each(|at| good[*at] = 1);
        let (one, two) = (leg(&good), leg(&[]));
        two.file.set_len(len as u64).expect("made");
        let legs = [&one, &two];
        let size = len as u64;
        let difference = || {
            let watch = &mut |_, _| true;
            let found = difference(&legs, size, &mut Progress::of(size, watch)).expect("read");
            found.map(|(_, at)| at)
        };
        assert_eq!(difference(), Some(5));
        let mut told = 0;
        let mut watch = |done, all| {
            told = done;
            all == size
        };
        copy(&legs, 0..size, &mut Progress::of(size, &mut watch)).expect("copied");
        assert!(bytes(&two) == good);
        assert_eq!(difference(), None);
        assert_eq!(told, size);
        let used = two.file.metadata().expect("there").blocks() * 512;
        assert!(used <= (places.len() * BLOCK) as u64, "{used}");
    }

    #[test]
    fn who_watches_may_end_it() {
        let (one, two) = (leg(&vec![1; 2 * STEP as usize]), leg(&vec![0; 2 * STEP as usize]));
        let size = 2 * STEP;
        let stopped = copy(&[&one, &two], 0..size, &mut Progress::of(size, &mut |_, _| false));
        assert!(matches!(stopped, Err(Error::Stopped { .. })));
        assert!(bytes(&two)[STEP as usize..].iter().all(|byte| *byte == 0));
    }
}
