//! The power fails below both legs of a mirror, at any moment: what is on the legs then is made from records of their
//! writes and flushes, and the mirror is started from that.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use handoff_testbed::{Disk as _, Entry, Fault, Flaky, Logged, LoopDisk, Schedule};

use super::command::{Added, driver_or_skip, kill, nothing_is_left};

const LEN: u64 = 8 << 20;
/// What a mirror of small legs takes at their ends.
const ROOM: u64 = 76 << 10;
const SECTOR: usize = 512;
const SECTORS: usize = (LEN - ROOM) as usize / SECTOR;
const WRITERS: usize = 3;
/// Sectors of which each writer has its own.
const PART: usize = SECTORS / WRITERS / 8 * 8;

/// xorshift64*, by Marsaglia and Vigna.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// What is known of each sector: the writes of it, by number, in their order, and the last one that was flushed.
#[derive(Clone)]
struct Sector {
    written: Vec<u64>,
    flushed: usize,
}

#[derive(Clone)]
struct Known {
    sectors: Vec<Sector>,
    /// The writes that were answered.
    answered: BTreeSet<u64>,
    /// The number of the next write.
    next: u64,
}

struct Load {
    is_over: AtomicBool,
    known: Mutex<Known>,
    /// What was known at each moment at which the power may have failed.
    cuts: Mutex<Vec<Known>>,
}

impl Load {
    /// Holds both disks, and marks what had become durable on each.
    fn cut(&self, disks: [&Logged<LoopDisk>; 2]) {
        let mut cuts = self.cuts.lock().expect("no panic");
        disks.iter().for_each(|disk| disk.suspend().expect("suspended"));
        let known = self.known.lock().expect("no panic").clone();
        let name = cuts.len().to_string();
        disks.iter().for_each(|disk| disk.mark(&name).expect("marked"));
        disks.iter().for_each(|disk| disk.resume().expect("resumed"));
        cuts.push(known);
    }

    /// Writes its part of the device, and flushes. Each flush is a moment at which the power may fail.
    fn write(&self, node: &str, writer: usize, flushed: &dyn Fn()) {
        #[repr(C, align(4096))]
        struct Bytes([u8; 64 << 10]);
        let mut dice = Dice(writer as u64 + 77);
        let mut bytes = Box::new(Bytes([0; 64 << 10]));
        let disk = File::options().write(true).custom_flags(libc::O_DIRECT).open(node);
        let disk = disk.expect("opens");
        while !self.is_over.load(Ordering::SeqCst) {
            let mut ended = Vec::new();
            for _ in 0..1 + dice.below(6) {
                let length = 1 + dice.below(128) as usize;
                let from = writer * PART + dice.below((PART - length) as u64) as usize;
                let mut known = self.known.lock().expect("no panic");
                let number = known.next;
                known.next += 1;
                for (sector, place) in bytes.0.chunks_mut(SECTOR).zip(from..from + length) {
                    sector[..8].copy_from_slice(&number.to_le_bytes());
                    sector[8..16].copy_from_slice(&(place as u64).to_le_bytes());
                    known.sectors[place].written.push(number);
                    ended.push((place, known.sectors[place].written.len()));
                }
                drop(known);
                disk.write_all_at(&bytes.0[..length * SECTOR], (from * SECTOR) as u64)
                    .expect("written");
                self.known.lock().expect("no panic").answered.insert(number);
            }
            disk.sync_data().expect("flushed");
            let mut known = self.known.lock().expect("no panic");
            ended.iter().for_each(|(place, count)| known.sectors[*place].flushed = *count);
            drop(known);
            flushed();
        }
    }
}

/// The number of the write and the place that a sector tells.
fn told(sector: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"));
    (word(0), word(8))
}

/// A leg at the moments of its record.
struct Leg {
    entries: Vec<Entry>,
    /// How much of the record has been played.
    played: usize,
    bytes: Vec<u8>,
}

impl Leg {
    fn new(entries: Vec<Entry>) -> Self {
        Self { entries, played: 0, bytes: vec![0; LEN as usize] }
    }

    fn play(bytes: &mut [u8], entry: &Entry, mut is_kept: impl FnMut() -> bool) {
        match entry {
            Entry::Write { at, bytes: written, .. } => {
                let there = &mut bytes[*at as usize..][..written.len()];
                for (to, from) in there.chunks_mut(SECTOR).zip(written.chunks(SECTOR)) {
                    if is_kept() {
                        to.copy_from_slice(from);
                    }
                }
            }
            Entry::Discard { at, length } => bytes[*at as usize..][..*length as usize].fill(0),
            Entry::Flush | Entry::Mark(_) => {}
        }
    }

    /// What the disk may have after the power failed at a mark: all that was durable, and of what had been written each
    /// sector or not.
    fn after(&mut self, mark: usize, known: &Known, dice: &mut Dice) -> Vec<u8> {
        let mark = Entry::Mark(mark.to_string());
        while self.entries[self.played] != mark {
            Self::play(&mut self.bytes, &self.entries[self.played], || true);
            self.played += 1;
        }
        // What had ended before the mark comes first of what the next flush made durable: all up to the last write that
        // was answered by then. Behind it, writes that had begun may have been under way.
        let next = self.entries[self.played..].iter().take_while(|entry| **entry != Entry::Flush);
        let next: Vec<_> = next.collect();
        let number = |entry: &Entry| match entry {
            Entry::Write { at, bytes, is_durable: false } if *at < LEN - ROOM => told(bytes).0,
            _ => u64::MAX,
        };
        let is_answered = |entry: &&Entry| known.answered.contains(&number(entry));
        let ended = next.iter().rposition(is_answered).map_or(0, |last| last + 1);
        let mut bytes = self.bytes.clone();
        // None, all, or some.
        let kept = [0, 100, 50, 90][dice.below(4) as usize];
        for (place, entry) in next.iter().enumerate() {
            if place < ended || number(entry) < known.next {
                Self::play(&mut bytes, entry, || dice.below(100) < kept);
            }
        }
        bytes
    }
}

/// Starts the mirror after the power failed, and looks at all that it has.
fn started(cut: &Known, paths: &[String; 2], told_of: &str) {
    let device = Added::new(&["mirror", &paths[0], &paths[1], "--engine", "user-copy"]);
    let out = device.show()["failed_legs"].clone();
    let bytes = fs::read(device.node()).expect("read");
    for (place, (sector, of)) in bytes.chunks(SECTOR).zip(&cut.sectors).enumerate() {
        let (number, at) = told(sector);
        let Sector { written, flushed } = of;
        let may_be = &written[flushed.saturating_sub(1)..];
        let is_good = (*flushed == 0 && number == 0)
            || (may_be.contains(&number) && at == place as u64 && number < cut.next);
        assert!(is_good, "{told_of}: sector {place} has {number}, not of {may_be:?}; out: {out}");
    }
    device.del();
    if out == serde_json::json!([]) {
        let data = paths.each_ref().map(|path| fs::read(path).expect("a leg"));
        let [one, other] = data.each_ref().map(|data| &data[..(LEN - ROOM) as usize]);
        assert!(one == bytes && one == other, "{told_of}: the legs differ");
    }
}

/// How many moments are taken of those after a flush, and of others.
fn fails_below(engine: &str, flushes: usize, others: usize) {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let disk = |log: &str| {
        let lower = LoopDisk::new(Path::new("/var/tmp"), LEN, 512, false).expect("a loop device");
        Logged::over(lower, &place(log), 1 << 30).expect("a disk that is recorded")
    };
    let (one, other) = (disk("one"), Flaky::over(disk("other"), Schedule::WORKS).expect("a disk"));
    let disks = [&one, other.lower()];
    let path = |disk: &Path| disk.to_str().expect("UTF-8").to_owned();
    let (a, b) = (path(one.path()), path(other.path()));
    let device = Added::new(&["mirror", "--create", &a, &b, "--engine", engine]);
    let nothing = Sector { written: Vec::new(), flushed: 0 };
    let known = Known { sectors: vec![nothing; SECTORS], answered: BTreeSet::new(), next: 1 };
    let load =
        Load { is_over: AtomicBool::new(false), known: Mutex::new(known), cuts: Mutex::default() };
    let all = flushes + others;
    let left = AtomicU64::new(flushes as u64);
    let node = device.node();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (load, node, left) = (&load, &node, &left);
            let flushed = move || {
                // Some of them, so that others lie between.
                let is_taken = load.known.lock().expect("no panic").next % 4 == 0;
                let one_less = |left: u64| left.checked_sub(1);
                if is_taken
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
                {
                    load.cut(disks);
                }
            };
            scope.spawn(move || load.write(node, writer, &flushed));
        }
        let mut dice = Dice(5);
        let count = || load.cuts.lock().expect("no panic").len();
        let (mut killed, mut fails, mut taken) = (false, false, 0);
        while count() < all {
            std::thread::sleep(Duration::from_millis(5 + dice.below(40)));
            if taken < others {
                load.cut(disks);
                taken += 1;
            }
            if !killed && count() > all / 4 {
                kill(device.server(None));
                killed = true;
            }
            if !fails && count() > all * 2 / 3 {
                other.set(Schedule::fails(Fault::ErrorWrites)).expect("told to fail");
                fails = true;
            }
        }
        load.is_over.store(true, Ordering::SeqCst);
    });
    device.del();
    let lower = other.into_lower();
    let mut legs = [one, lower].map(|disk| Leg::new(disk.end().expect("a record")));
    let mut dice = Dice(99);
    let cuts = load.cuts.into_inner().expect("no panic");
    // Two starts at once, for two processors.
    for (turn, cuts) in cuts.chunks(2).enumerate() {
        std::thread::scope(|scope| {
            for (half, cut) in cuts.iter().enumerate() {
                let mark = turn * 2 + half;
                let paths = ["a", "b"].map(|name| path(&place(&format!("{name}{half}"))));
                for (leg, path) in legs.iter_mut().zip(&paths) {
                    fs::write(path, leg.after(mark, cut, &mut dice)).expect("written");
                }
                scope.spawn(move || started(cut, &paths, &format!("{engine}, {mark} of {all}")));
            }
        });
    }
    nothing_is_left();
}

#[test]
fn a_mirror_by_bpf_starts_after_the_power_failed() {
    driver_or_skip!();
    let is_long = std::env::var_os("HANDOFF_SOAK").is_some();
    if is_long { fails_below("bpf", 16, 14) } else { fails_below("bpf", 2, 2) }
}

/// The other engines, in the long form only.
macro_rules! starts_after_the_power_failed {
    ($($name:ident: $engine:literal,)*) => {
        $(
            #[test]
            fn $name() {
                driver_or_skip!();
                fails_below($engine, 16, 14);
            }
        )*
    };
}
starts_after_the_power_failed! {
    long_form_by_user_auto: "user-auto",
    long_form_by_batch_auto: "batch-auto",
    long_form_by_user_copy: "user-copy",
}
