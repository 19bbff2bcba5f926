//! A mirror that follows the design, over the legs of the simulation: its requests, its clerk and its start.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use super::disk::{self, Going, SECTOR, Shared};
use super::{Fault, PLACES, position};
use crate::mirror::bitmap::Bitmap;
use crate::mirror::intent::{Chunks, Clerk, Pages};
use crate::mirror::layout;
use crate::mirror::leg_record::{Copies, LegRecord};
use crate::mirror::legs::Legs;
use crate::mirror::page::{PAGE, Page};
use crate::mirror::start::{self, Ask, Named, Refused, Says};
use crate::request::Chunk;

/// Log2 of the bytes that are read from one leg.
const REGION_SHIFT: u32 = 19;

/// A started mirror. All of it but the clerk outlives a server that is killed.
pub(super) struct Device {
    world: Shared,
    fault: Fault,
    /// What is to be durable on all legs in use; of each leg, its own numbers.
    record: RefCell<LegRecord>,
    own: RefCell<Vec<LegRecord>>,
    /// Legs that are out, as requests see it.
    failed: Cell<Legs>,
    /// Legs that are out, as the others' records say durably.
    recorded: Cell<Legs>,
    memory: Vec<Chunk>,
    clerk: RefCell<Clerk>,
    wanted: RefCell<BTreeSet<usize>>,
    /// Turns of the clerk that failed: whoever waits for it gets an error.
    defeats: Cell<u64>,
    /// Whether the clerk shall look for chunks to clear.
    pub(super) tick: Cell<bool>,
}

/// Why there is no mirror.
#[derive(Debug)]
pub(super) enum NoStart {
    Refused(Refused),
    /// A leg failed.
    Failed,
}

async fn until(mut condition: impl FnMut() -> bool) {
    poll_fn(|_| if condition() { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Device {
    fn chunks(&self) -> Chunks<'_> {
        Chunks(&self.memory)
    }

    fn all(&self) -> Legs {
        Legs::first(self.own.borrow().len())
    }

    pub(super) fn in_use(&self) -> Legs {
        self.all().without(self.failed.get())
    }

    /// As `blk_take_out`.
    fn take_out(&self, leg: usize) -> bool {
        let failed = self.failed.get().with(Legs::one(leg));
        if failed == self.all() {
            return self.failed.get().has(leg);
        }
        self.failed.set(failed);
        true
    }

    /// Awaits a request on each of these legs; legs that fail are out. Returns those that did not fail.
    async fn each(&self, legs: Legs, submit: impl Fn(usize) -> Going) -> Result<Legs, ()> {
        let going: Vec<_> = legs.iter().map(|leg| (leg, submit(leg))).collect();
        let (mut good, mut lost) = (Legs::default(), false);
        for (leg, going) in going {
            match going.await {
                Ok(_) => good = good.with(Legs::one(leg)),
                Err(()) => lost |= !self.take_out(leg),
            }
        }
        if lost { Err(()) } else { Ok(good) }
    }

    async fn flush_all(&self) -> Result<(), ()> {
        self.each(self.in_use(), |leg| disk::flush(&self.world, leg)).await.map(drop)
    }

    fn write_pages(&self, pages: &Pages) -> impl Future<Output = Result<Legs, ()>> + '_ {
        let pages = pages.clone();
        let images: Vec<_> = pages
            .iter()
            .map(|page| (*page as u64 * PAGE, self.clerk.borrow().bitmap.encode(*page)))
            .collect();
        async move {
            let mut good = self.in_use();
            for (at, image) in images {
                let write = |leg: usize| {
                    let own = &self.own.borrow()[leg];
                    let start = own.layout.bitmap_at(own.end);
                    disk::write(&self.world, leg, start + at, &image)
                };
                good = self.each(good, write).await?;
            }
            Ok(good)
        }
    }

    /// Makes it durable on all legs in use that others are out.
    async fn record_all(&self) -> Result<(), ()> {
        loop {
            let (failed, in_use) = (self.failed.get(), self.in_use());
            let mut record = self.record.borrow().clone();
            if record.in_use != in_use {
                let change = self.world.borrow_mut().random.next() + 1;
                let generation = record.generation + 1;
                record = record.changed(in_use, change, [], generation);
                *self.record.borrow_mut() = record.clone();
            }
            write_records(self, &record, in_use).await?;
            if self.in_use() == in_use {
                let news = failed.without(self.recorded.replace(failed));
                // Legs that are out are told, if they still listen.
                if self.world.borrow_mut().random.once_in(2) {
                    for leg in news.iter() {
                        let _ = write_record(self, &record, leg).await;
                    }
                }
                return Ok(());
            }
        }
    }

    /// The thread that writes records and the bitmap.
    pub(super) async fn run_clerk(self: Rc<Self>) {
        loop {
            let is_due = || self.failed.get() != self.recorded.get();
            until(|| is_due() || !self.wanted.borrow().is_empty() || self.tick.get()).await;
            let done = if is_due() {
                self.record_all().await
            } else if !self.wanted.borrow().is_empty() {
                self.set_wanted().await
            } else {
                self.tick.set(false);
                self.clear_idle().await
            };
            if done.is_err() {
                self.wanted.borrow_mut().clear();
                self.defeats.set(self.defeats.get() + 1);
            }
        }
    }

    async fn set_wanted(&self) -> Result<(), ()> {
        let wanted: Vec<_> = std::mem::take(&mut *self.wanted.borrow_mut()).into_iter().collect();
        let pages = self.clerk.borrow_mut().set(wanted.iter().copied());
        self.write_pages(&pages).await?;
        if self.fault != Fault::BitNotFlushed {
            self.flush_all().await?;
        }
        self.chunks().confirm(wanted);
        Ok(())
    }

    async fn clear_idle(&self) -> Result<(), ()> {
        if self.fault == Fault::ClearsUnderWrites {
            self.chunks().begin_anew();
            self.clerk.borrow_mut().look(self.chunks());
        }
        if !self.clerk.borrow_mut().look(self.chunks()) {
            return Ok(());
        }
        if self.fault != Fault::ClearsUnflushed {
            self.flush_all().await?;
        }
        // A leg that went out in the flush, and of which nobody knows it yet, keeps its bits: so do the others.
        if self.failed.get() != self.recorded.get() {
            return Ok(());
        }
        let pages = self.clerk.borrow_mut().flushed(self.chunks());
        self.write_pages(&pages).await.map(drop)
    }

    /// Waits until the clerk has done something, or has failed.
    async fn wait_for(&self, condition: impl Fn() -> bool) -> Result<(), ()> {
        let defeats = self.defeats.get();
        let mut result = Ok(());
        until(|| {
            if !condition() && self.defeats.get() != defeats {
                result = Err(());
            }
            condition() || result.is_err()
        })
        .await;
        result
    }

    async fn wait_for_records(&self) -> Result<(), ()> {
        if self.fault == Fault::AnswersBeforeRecord {
            return Ok(());
        }
        self.wait_for(|| self.failed.get() == self.recorded.get()).await
    }

    fn chunk_of(&self, place: usize) -> Range<usize> {
        let chunk = self.record.borrow().layout.chunk_of(position(place));
        chunk..chunk + 1
    }

    /// The legs that have it.
    pub(super) async fn write(&self, place: usize, bytes: &[u8]) -> Result<Legs, ()> {
        let chunks = self.chunk_of(place);
        let mut begun = self.chunks().begin(chunks.clone());
        while !begun {
            self.wanted.borrow_mut().insert(chunks.start);
            if self.fault == Fault::WritesBeforeBit {
                break;
            }
            self.wait_for(|| self.chunks().is_set(chunks.start)).await?;
            begun = self.chunks().begin(chunks.clone());
        }
        let write = |leg| disk::write(&self.world, leg, position(place), bytes);
        let written = self.each(self.in_use(), write).await;
        let result = match written {
            Ok(good) if !good.is_empty() => self.wait_for_records().await.map(|()| good),
            _ => Err(()),
        };
        match result {
            _ if !begun => {}
            Ok(_) => self.chunks().end(chunks),
            Err(()) => self.chunks().keep(chunks),
        }
        result
    }

    /// The legs that were flushed.
    pub(super) async fn flush(&self) -> Result<Legs, ()> {
        if self.fault == Fault::AnswersBeforeFlush {
            return Ok(self.in_use());
        }
        let good = self.each(self.in_use(), |leg| disk::flush(&self.world, leg)).await?;
        if good.is_empty() {
            return Err(());
        }
        self.wait_for_records().await?;
        Ok(good)
    }

    pub(super) async fn read(&self, place: usize) -> Result<Vec<u8>, ()> {
        let legs = self.own.borrow().len();
        let mut leg = (position(place) >> REGION_SHIFT) as usize % legs;
        for _ in 0..legs {
            while !self.in_use().has(leg) {
                leg = (leg + 1) % legs;
            }
            match disk::read(&self.world, leg, position(place), SECTOR).await {
                Ok(bytes) => return Ok(bytes),
                Err(()) if self.take_out(leg) => {}
                Err(()) => return Err(()),
            }
        }
        Err(())
    }

    /// What the next server has.
    pub(super) fn after_kill(self: Rc<Self>) -> Rc<Self> {
        let device = Rc::into_inner(self).expect("its tasks are gone");
        device.chunks().begin_anew();
        // The next clerk has seen nothing yet.
        let bitmap = device.clerk.borrow().bitmap.clone();
        device.clerk.replace(Clerk::new(bitmap));
        device.clerk.borrow_mut().adopt(device.chunks());
        Rc::new(Self { wanted: RefCell::default(), ..device })
    }
}

/// The next record of a leg, with its own numbers.
fn next_record(device: &Device, record: &LegRecord, leg: usize) -> LegRecord {
    let mut own = device.own.borrow_mut();
    let next = record.on(&own[leg]);
    own[leg].sequence = next.sequence;
    next
}

/// Makes a record durable on these legs, the worse copy first.
async fn write_records(device: &Device, record: &LegRecord, legs: Legs) -> Result<(), ()> {
    let count = device.own.borrow().len();
    let pages: Vec<_> = (0..count)
        .map(|leg| match legs.has(leg) {
            true => next_record(device, record, leg).encode(),
            false => [0; PAGE as usize],
        })
        .collect();
    // A server that was killed may have left a copy half written.
    let order = |leg| match says(&device.world, leg, device.own.borrow()[leg].end) {
        Says::Record(copies) if device.fault != Fault::GoodCopyFirst => copies.order(),
        _ => [0, 1],
    };
    let orders: Vec<_> = (0..count).map(order).collect();
    // A copy that can be read may still be lost: the better one has to stay.
    let mut good = match device.fault {
        Fault::OverwritesUnflushed => legs,
        _ => device.each(legs, |leg| disk::flush(&device.world, leg)).await?,
    };
    for turn in [0, 1] {
        let write = |leg: usize| {
            let at = layout::copy_at(device.own.borrow()[leg].end, orders[leg][turn]);
            disk::write(&device.world, leg, at, &pages[leg])
        };
        good = device.each(good, write).await?;
        if device.fault == Fault::RecordNotFlushed
            || device.fault == Fault::CopiesAtOnce && turn == 0
        {
            continue;
        }
        good = device.each(good, |leg| disk::flush(&device.world, leg)).await?;
    }
    Ok(())
}

/// Writes the record of one leg, the worse copy first.
async fn write_record(device: &Device, record: &LegRecord, leg: usize) -> Result<(), ()> {
    let end = device.own.borrow()[leg].end;
    let Says::Record(copies) = says(&device.world, leg, end) else { return Err(()) };
    let own = &copies.record;
    let is_new = record.in_use.has(leg) || device.fault == Fault::TellsChanges;
    let next = if is_new { record.on(own) } else { record.told_to(own) };
    let page = next.encode();
    device.own.borrow_mut()[leg].sequence = next.sequence;
    disk::flush(&device.world, leg).await?;
    for copy in copies.order() {
        disk::write(&device.world, leg, layout::copy_at(end, copy), &page).await?;
        disk::flush(&device.world, leg).await?;
    }
    Ok(())
}

/// What a leg says. Reads do not change anything, so they are not spread over time.
pub(super) fn says(world: &Shared, leg: usize, end: u64) -> Says {
    let read = |copy| -> Page {
        let at = layout::copy_at(end, copy) / SECTOR as u64;
        let disk = &world.borrow().legs[leg];
        let bytes: Vec<u8> = (at..).take(8).flat_map(|at| disk.read(at)).collect();
        bytes.try_into().expect("a page")
    };
    Copies::of([&read(0), &read(1)], end)
        .map_or(Says::Damaged, |copies| Says::Record(copies.into()))
}

/// Starts a mirror of these legs, in this order.
pub(super) async fn start(
    world: Shared,
    fault: Fault,
    (legs, records): (Vec<usize>, Vec<LegRecord>),
    ask: Ask,
    in_use: Rc<Cell<Legs>>,
) -> Result<Rc<Device>, NoStart> {
    // What can be read may still be lost.
    let read_first = if fault == Fault::ReadsUnflushed { &[][..] } else { &legs[..] };
    for leg in read_first {
        disk::flush(&world, *leg).await.map_err(|()| NoStart::Failed)?;
    }
    let named = |leg: &usize| {
        let end = records[*leg].end;
        Named { path: format!("leg-{leg}"), end, says: says(&world, *leg, end) }
    };
    let named: Vec<_> = legs.iter().map(named).collect();
    let mut decided = start::decide(&named, ask);
    if let (Fault::StartsWithoutMissing, Err(Refused::Missing { .. })) = (fault, &decided) {
        decided = start::decide(&named, Ask { degraded: true, ..ask });
    }
    if let (Fault::GuessesAfterSplit, Err(Refused::Split { .. })) = (fault, &decided) {
        decided = start::decide(&named, Ask { trust: Some(0), ..ask });
    }
    let start = decided.map_err(NoStart::Refused)?;
    in_use.set(start.in_use);
    let mut own = records;
    for leg in &named {
        if let Says::Record(copies) = &leg.says {
            own[copies.record.leg].sequence = copies.record.sequence;
        }
    }
    let layout = start.record.layout;
    let out = Legs::first(own.len()).without(start.in_use);
    let mut bitmap = Bitmap::clear(start.record.uuid, layout.chunks());
    for leg in start.in_use.iter() {
        let at = layout.bitmap_at(own[leg].end);
        let read =
            disk::read(&world, leg, at, PAGE as usize).await.map_err(|()| NoStart::Failed)?;
        bitmap.add(0, &read.try_into().expect("a page"));
    }
    let memory: Vec<_> = (0..layout.chunks()).map(|_| Chunk::default()).collect();
    Chunks(&memory).confirm(bitmap.set());
    let device = Rc::new(Device {
        world,
        fault,
        record: start.record.clone().into(),
        own: own.into(),
        failed: out.into(),
        recorded: out.into(),
        clerk: Clerk::new(bitmap).into(),
        memory,
        wanted: RefCell::default(),
        defeats: Cell::default(),
        tick: Cell::default(),
    });
    let failed = |()| NoStart::Failed;
    let overrule = match fault {
        Fault::OverrulesNobody => Legs::default(),
        _ => start.overrule,
    };
    for leg in overrule.iter() {
        write_record(&device, &start.record, leg).await.map_err(failed)?;
    }
    make_good(&device, start.write, start.in_use).await.map_err(failed)?;
    for leg in start.tell.iter() {
        let _ = write_record(&device, &start.record, leg).await;
    }
    // A leg that fails before anybody used the device is a reason not to make it.
    if device.failed.get() != out { Err(NoStart::Failed) } else { Ok(device) }
}

/// Records first, then the bits on all legs, then the chunks.
async fn make_good(device: &Device, write: Legs, in_use: Legs) -> Result<(), ()> {
    let record = device.record.borrow().clone();
    for leg in write.iter() {
        write_record(device, &record, leg).await?;
    }
    let dirty: Vec<_> = device.clerk.borrow().bitmap.set().collect();
    let source = in_use.iter().next().ok_or(())?;
    if device.fault == Fault::LeavesChunksUnequal {
        return Ok(());
    }
    device.write_pages(&Pages::from([0])).await?;
    device.flush_all().await?;
    for place in (0..PLACES).filter(|place| dirty.contains(&device.chunk_of(*place).start)) {
        let bytes = disk::read(&device.world, source, position(place), SECTOR).await?;
        let others = in_use.without(Legs::one(source));
        device.each(others, |leg| disk::write(&device.world, leg, position(place), &bytes)).await?;
    }
    device.flush_all().await
}
