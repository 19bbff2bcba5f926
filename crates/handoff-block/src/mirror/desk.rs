//! What the clerk does: records and bits on the legs, for the requests that wait. It waits for nothing but the legs.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::SeqCst;

use super::bitmap::Bitmap;
use super::intent::{Chunks, Clerk, Pages};
use super::layout::Layout;
use super::leg_record::{Copies, LegRecord};
use super::legs::Legs;
use super::room;
use crate::counters::RECORD;
use crate::request::{Failure, WAITS_BIT, is_legs};
use crate::state::Shared;

/// How often a leg is asked again if an error says nothing about it.
const TRIES: usize = 8;

/// The last leg in use failed, or the server lacks something. The caller gets an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Defeat;

/// What takes memory.
pub(super) struct Prepared {
    clerk: Clerk,
    wanted: Wanted,
    layout: Layout,
}

/// Chunks that requests wait for, each once.
struct Wanted {
    list: Vec<usize>,
    has: Vec<bool>,
}

impl Wanted {
    fn of(chunks: usize) -> Self {
        let mut list = vec![0; chunks];
        list.clear();
        Self { list, has: vec![false; chunks] }
    }

    fn add(&mut self, chunk: usize) {
        if let Some(has @ false) = self.has.get_mut(chunk) {
            *has = true;
            self.list.push(chunk);
        }
    }

    fn clear(&mut self) {
        self.list.drain(..).for_each(|chunk| self.has[chunk] = false);
    }
}

impl Prepared {
    pub(super) fn new(uuid: [u8; 16], layout: Layout) -> Self {
        // So the heap has room for such things.
        drop(Pages::from([0]));
        let chunks = layout.chunks();
        Self { clerk: Clerk::new(Bitmap::clear(uuid, chunks)), wanted: Wanted::of(chunks), layout }
    }
}

struct Leg {
    file: File,
    end: u64,
    /// Of the last record that was read or written.
    sequence: u64,
}

pub(super) struct Desk {
    shared: Shared,
    layout: Layout,
    uuid: [u8; 16],
    legs: Vec<Leg>,
    /// What the records of the legs in use say, or shall say; `None` if no leg could tell yet.
    record: Option<LegRecord>,
    clerk: Clerk,
    wanted: Wanted,
}

impl Desk {
    /// All that a killed server had under way begins anew. Before queues serve.
    pub(super) fn begin_anew(shared: &Shared) {
        Chunks(shared.chunks()).begin_anew();
    }

    pub(super) fn new(
        Prepared { clerk, wanted, layout }: Prepared,
        shared: Shared,
        legs: Vec<File>,
        ends: &[u64],
        recovers: bool,
    ) -> Self {
        let leg = |(file, end): (File, &u64)| Leg { file, end: *end, sequence: 0 };
        let legs = legs.into_iter().zip(ends).map(leg).collect();
        let uuid = clerk.bitmap.uuid();
        let mut desk = Self { shared, layout, uuid, legs, record: None, clerk, wanted };
        let begun = desk.read_records().and_then(|()| {
            if recovers {
                desk.clerk.adopt(Chunks(desk.shared.chunks()));
                return Ok(());
            }
            desk.take_bits()
        });
        if begun == Err(Defeat) {
            tracing::error!("the clerk of the mirror cannot read its legs yet");
        }
        desk
    }

    fn all(&self) -> Legs {
        Legs::first(self.legs.len())
    }

    fn failed(&self) -> Legs {
        Legs(self.shared.failed().load(SeqCst))
    }

    fn in_use(&self) -> Legs {
        self.all().without(self.failed())
    }

    /// Whether a leg is out of which the records do not know.
    fn is_due(&self) -> bool {
        self.failed().0 != self.shared.recorded().load(SeqCst)
    }

    pub(super) fn has_bits(&self) -> bool {
        self.clerk.bitmap.set().next().is_some()
    }

    /// Does something on each of these legs; legs that fail are out. Returns those that did not fail.
    fn each(
        &mut self,
        legs: Legs,
        mut act: impl FnMut(&mut Self, usize) -> io::Result<()>,
    ) -> Result<Legs, Defeat> {
        let mut good = Legs::default();
        for leg in legs.iter() {
            let mut tries = TRIES;
            let error = loop {
                match act(self, leg) {
                    Ok(()) => break None,
                    Err(error) => {
                        let is_own = is_legs(-error.raw_os_error().unwrap_or(libc::EIO));
                        tries -= 1;
                        if is_own || tries == 0 {
                            break Some((error, is_own));
                        }
                    }
                }
            };
            match error {
                None => good = good.with(Legs::one(leg)),
                Some((error, true)) => self.take_out(leg, &error)?,
                Some((error, false)) => {
                    tracing::error!("the clerk cannot use leg {leg} of the mirror: {error}");
                    return Err(Defeat);
                }
            }
        }
        Ok(good)
    }

    fn take_out(&self, leg: usize, error: &io::Error) -> Result<(), Defeat> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let when = (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1);
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        let noted = Failure { when, op: RECORD, error: -number, ..Failure::default() };
        let is_out = self.shared.take_out(leg, &noted);
        if is_out { Ok(()) } else { Err(Defeat) }
    }

    /// The record of a leg, if it is one of this mirror.
    fn read_record(&mut self, leg: usize) -> io::Result<Option<Copies>> {
        let copies = room::read_record(&self.legs[leg].file, self.legs[leg].end)?.ok();
        if let Some(Copies { record, .. }) = &copies {
            if record.uuid != self.uuid || record.leg != leg {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            self.legs[leg].sequence = record.sequence;
        }
        Ok(copies)
    }

    /// Learns what the legs in use say: the newest record is that of the last change, which may not be on all of them.
    fn read_records(&mut self) -> Result<(), Defeat> {
        let mut read = Vec::with_capacity(self.legs.len());
        self.each(self.in_use(), |desk, leg| {
            read.extend(desk.read_record(leg)?.map(|copies| copies.record));
            Ok(())
        })?;
        let kept = LegRecord::decode(&self.shared.record()).ok();
        read.extend(kept.filter(|kept| kept.uuid == self.uuid));
        self.record = newest(read.into_iter());
        if self.record.is_some() { Ok(()) } else { Err(Defeat) }
    }

    /// Takes the bits as a start has left them, and makes them durable on all legs in use.
    fn take_bits(&mut self) -> Result<(), Defeat> {
        let Some(record) = self.record.clone() else { return Err(Defeat) };
        let mut bitmap = Bitmap::clear(self.uuid, self.layout.chunks());
        self.each(self.in_use(), |desk, leg| {
            let Leg { file, end, .. } = &desk.legs[leg];
            let own = LegRecord { end: *end, ..record.clone() };
            room::read_bitmap(file, &own, &mut bitmap).map(drop)
        })?;
        let pages = self.clerk.set(bitmap.set());
        if !pages.is_empty() {
            self.write_pages(&pages)?;
            self.flush()?;
        }
        Chunks(self.shared.chunks()).confirm(bitmap.set());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Defeat> {
        self.each(self.in_use(), |desk, leg| desk.legs[leg].file.sync_data()).map(drop)
    }

    fn write_pages(&mut self, pages: &Pages) -> Result<(), Defeat> {
        let layout = self.layout;
        let write = |desk: &mut Self, leg: usize| {
            let Leg { file, end, .. } = &desk.legs[leg];
            room::write_pages(
                file,
                layout.bitmap_at(*end),
                &desk.clerk.bitmap,
                pages.iter().copied(),
            )
        };
        self.each(self.in_use(), write).map(drop)
    }

    /// Makes it durable on all legs in use that others are out.
    fn record_all(&mut self) -> Result<(), Defeat> {
        while self.is_due() {
            if self.record.is_none() {
                self.read_records()?;
            }
            let (failed, in_use) = (self.failed(), self.in_use());
            let Some(mut record) = self.record.clone() else { return Err(Defeat) };
            if record.in_use != in_use {
                let change = change().ok_or(Defeat)?;
                record = record.changed(in_use, change, [], record.generation + 1);
                // The next clerk must not make another change beside one that a leg may have.
                self.shared.keep_record(&record.encode());
                self.record = Some(record.clone());
            }
            self.each(in_use, |desk, leg| desk.write_record(leg, &record))?;
            if self.failed() == failed {
                self.shared.recorded().store(failed.0, SeqCst);
            }
        }
        Ok(())
    }

    /// Makes a record durable on one leg, the worse copy first.
    fn write_record(&mut self, leg: usize, record: &LegRecord) -> io::Result<()> {
        // A server that was killed may have left a copy half written.
        let order = self.read_record(leg)?.map_or([0, 1], |copies| copies.order());
        let Leg { file, end, sequence } = &mut self.legs[leg];
        let next = LegRecord { leg, end: *end, sequence: *sequence + 1, ..record.clone() };
        *sequence = next.sequence;
        room::write_record(file, &next, order)
    }

    /// Sets the bits of the wanted chunks.
    fn set_wanted(&mut self) -> Result<(), Defeat> {
        let pages = self.clerk.set(self.wanted.list.iter().copied());
        if pages.is_empty() {
            return Ok(());
        }
        self.write_pages(&pages)?;
        self.flush()?;
        Chunks(self.shared.chunks()).confirm(self.wanted.list.iter().copied());
        Ok(())
    }

    /// Does what requests of these queues and tags wait for, and answers them all; `answered` hears of their queues.
    pub(super) fn turn(&mut self, asked: &[(u16, u16)], mut answered: impl FnMut(u16)) {
        let _ = self.record_all();
        let chunks = Chunks(self.shared.chunks());
        self.wanted.clear();
        // What is asked for does not change while it waits.
        for waiting in asked.iter().filter_map(|(queue, tag)| self.shared.waiting(*queue, *tag)) {
            if waiting.what == WAITS_BIT {
                let last = self.layout.chunk_of(waiting.bytes.end.saturating_sub(1));
                let own = self.layout.chunk_of(waiting.bytes.start)..=last;
                own.filter(|chunk| *chunk < chunks.0.len() && !chunks.is_set(*chunk))
                    .for_each(|chunk| self.wanted.add(chunk));
            }
        }
        let set = self.set_wanted();
        // A leg may have gone out meanwhile.
        let recorded = self.record_all();
        for (queue, tag) in asked {
            let Some(waiting) = self.shared.waiting(*queue, *tag) else { continue };
            let done = if waiting.what == WAITS_BIT { set } else { recorded };
            waiting.answer(done.err().map(|Defeat| libc::EIO));
            answered(*queue);
        }
    }

    /// Clears the bits of chunks to which nobody has written since the last look.
    pub(super) fn look(&mut self) {
        if !self.clerk.look(Chunks(self.shared.chunks())) || self.flush().is_err() {
            return;
        }
        // A leg that went out in the flush, and of which nobody knows it yet, keeps its bits: so do the others.
        if self.is_due() {
            let _ = self.record_all();
            return;
        }
        let pages = self.clerk.flushed(Chunks(self.shared.chunks()));
        let _ = self.write_pages(&pages);
        let _ = self.record_all();
    }

    /// Clears all bits that may be cleared, when nobody writes any more.
    pub(super) fn clear_all(&mut self) {
        let _ = self.record_all();
        // A look sees what was idle at the last one.
        (0..2).for_each(|_| self.look());
    }
}

/// The newest of the records of legs in use, and of the last clerk, whose comes last.
fn newest(records: impl Iterator<Item = LegRecord>) -> Option<LegRecord> {
    records.max_by_key(|record| record.generation)
}

/// A number that no other change has; `None` if the kernel has none yet.
fn change() -> Option<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK).ok()?;
    Some(u64::from_ne_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests;
