use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use super::*;
use crate::mirror::clerk::{Clerk, Order};
use crate::mirror::create::create;
use crate::request::{Config, Descriptor, Done, Entries, Recorded, Requests};
use crate::state::{Mapping, Rooms, State};
use crate::{Kind, Spec, target};

const MIB: u64 = 1 << 20;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DEPTH: u16 = 4;

/// A mirror of two files with records, of 8 chunks of 1 MiB, and one queue of it.
struct Mirror {
    legs: Vec<File>,
    records: Vec<LegRecord>,
    state: State,
    // Dropped before the memory that it works in.
    requests: Requests,
    _region: Mapping,
    entries: Entries,
}

impl Mirror {
    fn new() -> Self {
        let len = 8 * MIB;
        let named: Vec<_> = (0..2).map(|leg| (format!("leg-{leg}"), len + (80 << 10))).collect();
        let records = create(&named, [3; 16], 77).expect("room");
        let layout = records[0].layout;
        let bitmap = Bitmap::clear([3; 16], layout.chunks());
        let leg = |record: &LegRecord| {
            let leg = tempfile::tempfile().expect("a file");
            leg.set_len(record.end).expect("as long as it is");
            room::write_bitmap(&leg, record, &bitmap, [0]).expect("written");
            room::write_record(&leg, record, [0, 1]).expect("written");
            leg
        };
        let legs = records.iter().map(leg).collect();
        let spec = Spec { target: Kind::Mirror, ..Spec::default() };
        let (map, _) = target::lay_out(&spec, &[layout.size; 2]).expect("a mirror");
        let rooms = Rooms { queues: 1, depth: DEPTH, chunks: layout.chunks() };
        let file = tempfile::tempfile().expect("a file");
        let state = State::begin(file, &map, rooms).expect("a state");
        let (requests, region) = Self::queue(&state, layout, -1);
        Self { legs, records, state, requests, _region: region, entries: Entries::new() }
    }

    fn queue(state: &State, layout: Layout, clerk: i32) -> (Requests, Mapping) {
        let region = state.map(0).expect("mapped");
        let (_, chunks_at) = crate::state::region_bytes(DEPTH, layout.chunks());
        let config = Config {
            depth: DEPTH.into(),
            tag_mask: u32::from(DEPTH) - 1,
            chunks_at: chunks_at as u32,
            chunk_shift: layout.chunk_shift,
            chunk_mask: layout.chunks().next_power_of_two() as u32 - 1,
            clerk,
            ..Config::default()
        };
        // SAFETY: the region has room for so many requests and chunks, and goes with this.
        (unsafe { Requests::new(config, region.as_ptr()) }, region)
    }

    fn layout(&self) -> Layout {
        self.records[0].layout
    }

    fn own_legs(&self) -> Vec<File> {
        self.legs.iter().map(|leg| leg.try_clone().expect("a descriptor")).collect()
    }

    fn ends(&self) -> Vec<u64> {
        self.records.iter().map(|record| record.end).collect()
    }

    fn desk_of(&self, legs: Vec<File>, recovers: bool) -> Desk {
        let shared = self.state.map_whole().expect("mapped");
        if recovers {
            Desk::begin_anew(&shared);
        }
        Desk::new(Prepared::new([3; 16], self.layout()), shared, legs, &self.ends(), recovers)
    }

    fn desk(&self) -> Desk {
        self.desk_of(self.own_legs(), false)
    }

    /// The chunks whose bit is set on a leg.
    fn bits(&self, leg: usize) -> Vec<usize> {
        let mut bitmap = Bitmap::clear([3; 16], self.layout().chunks());
        assert!(room::read_bitmap(&self.legs[leg], &self.records[leg], &mut bitmap).expect("read"));
        bitmap.set().collect()
    }

    fn says(&self, leg: usize) -> LegRecord {
        let copies = room::read_record(&self.legs[leg], self.records[leg].end).expect("read");
        let copies = copies.expect("a record");
        assert!(!copies.differ);
        copies.record
    }

    /// A request arrives: what becomes of it.
    fn arrives(&mut self, tag: u32, op: u32, position: u64, length: u64) -> Became {
        let (sectors, start_sector) = ((length >> 9) as u32, position >> 9);
        let descriptor = Descriptor { op_flags: op, sectors, start_sector, address: 0 };
        let end = self.requests.arrived(tag, &descriptor, 7, &mut self.entries);
        self.became(end)
    }

    /// Pieces end, of each leg with this result.
    fn ends_with(&mut self, tag: u32, results: [i32; 2]) -> Became {
        let slots: Vec<_> = (0..2).zip(results).collect();
        let mut end = None;
        for (slot, result) in slots {
            assert_eq!(end, None);
            end = self.requests.moved((tag, slot), result, 9, &mut self.entries);
        }
        self.became(end)
    }

    fn answered(&mut self, tag: u32) -> Became {
        let end = self.requests.answered(tag, 8, &mut self.entries);
        self.became(end)
    }

    fn became(&self, end: Option<i32>) -> Became {
        let entries = self.entries.words();
        let of = |entry: &[u32; 16]| Done::of(u64::from(entry[9]) << 32 | u64::from(entry[8]));
        match (end, entries.iter().map(of).collect::<Vec<_>>().as_slice()) {
            (Some(result), []) => Became::Over(result),
            (None, [Done::Missed(_)]) => Became::Waiting,
            (None, []) => Became::Nothing,
            (None, pieces) => {
                assert!(pieces.iter().all(|it| matches!(it, Done::Piece { .. })), "{pieces:?}");
                Became::Pieces(pieces.len())
            }
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Became {
    Waiting,
    Pieces(usize),
    Over(i32),
    Nothing,
}
use Became::{Nothing, Over, Pieces, Waiting};

#[test]
fn a_write_waits_until_its_bits_are_on_all_legs() {
    let mut mirror = Mirror::new();
    let mut desk = mirror.desk();
    let mut queues = Vec::new();
    assert_eq!(mirror.arrives(0, WRITE, 3 * MIB - 4096, 8192), Waiting);
    assert_eq!(mirror.arrives(1, WRITE, 5 * MIB, 4096), Waiting);
    assert_eq!(mirror.arrives(2, 0, 3 * MIB, 4096), Pieces(1), "reads do not wait");
    assert_eq!(mirror.answered(0), Nothing);
    desk.turn(&[(0, 0), (0, 1), (0, 3), (9, 9)], |queue| queues.push(queue));
    assert_eq!(queues, [0, 0], "whoever does not wait gets no answer");
    for leg in [0, 1] {
        assert_eq!(mirror.bits(leg), [2, 3, 5]);
    }
    assert_eq!(mirror.answered(0), Pieces(2));
    assert_eq!(mirror.answered(0), Nothing, "once");
    assert_eq!(mirror.ends_with(0, [8192; 2]), Over(8192));
    assert_eq!(mirror.answered(1), Pieces(2));
    // In steady state nobody waits.
    assert_eq!(mirror.arrives(0, WRITE, 2 * MIB, 4096), Pieces(2));
    desk.look();
    desk.look();
    assert_eq!(mirror.bits(0), [2, 5], "two of them have writes under way");
    assert_eq!(mirror.ends_with(0, [4096; 2]), Over(4096));
    assert_eq!(mirror.ends_with(1, [4096; 2]), Over(4096));
    assert_eq!(mirror.arrives(0, FLUSH, 0, 0), Pieces(2));
    assert_eq!(mirror.ends_with(0, [0; 2]), Over(0));
    desk.clear_all();
    assert!(mirror.bits(0).is_empty() && mirror.bits(1).is_empty() && !desk.has_bits());
    assert_eq!(mirror.arrives(0, WRITE, 2 * MIB, 4096), Waiting);
}

#[test]
fn what_a_leg_lacks_is_answered_when_the_others_say_that_it_is_out() {
    for op in [WRITE, FLUSH] {
        let mut mirror = Mirror::new();
        let mut desk = mirror.desk();
        let (length, done) = if op == WRITE { (4096, 4096) } else { (0, 0) };
        if op == WRITE {
            assert_eq!(mirror.arrives(0, op, 0, length), Waiting);
            desk.turn(&[(0, 0)], drop);
            assert_eq!(mirror.answered(0), Pieces(2));
        } else {
            assert_eq!(mirror.arrives(0, op, 0, length), Pieces(2));
        }
        assert_eq!(mirror.ends_with(0, [done, -libc::EIO]), Waiting);
        assert_eq!(mirror.says(0).in_use, Legs(0b11));
        // It is not forgotten by a look that comes first.
        desk.look();
        desk.turn(&[(0, 0)], drop);
        assert_eq!((mirror.says(0).in_use, mirror.says(0).generation), (Legs(0b01), 2));
        assert_eq!(mirror.says(1).in_use, Legs(0b11), "nobody writes to it");
        assert_eq!(mirror.answered(0), Over(done));
        assert_eq!(mirror.arrives(1, FLUSH, 0, 0), Pieces(1));
    }
}

/// The same file, which cannot be written any more.
fn read_only(leg: &File) -> File {
    File::open(format!("/proc/self/fd/{}", leg.as_raw_fd())).expect("a descriptor")
}

#[test]
fn a_leg_that_does_not_take_the_bitmap_is_out_and_the_other_one_says_so() {
    let mut mirror = Mirror::new();
    let legs = vec![read_only(&mirror.legs[0]), mirror.own_legs().remove(1)];
    let mut desk = mirror.desk_of(legs, false);
    assert_eq!(mirror.arrives(0, WRITE, 0, 4096), Waiting);
    desk.turn(&[(0, 0)], drop);
    assert_eq!(mirror.says(1).in_use, Legs(0b10));
    assert!(mirror.bits(0).is_empty());
    assert_eq!(mirror.bits(1), [0]);
    assert_eq!(mirror.answered(0), Pieces(1));
}

#[test]
fn if_the_last_leg_refuses_requests_fail_and_the_next_one_tries_again() {
    let mut mirror = Mirror::new();
    let mut desk = mirror.desk();
    assert_eq!(mirror.arrives(0, WRITE, 0, 4096), Waiting);
    desk.turn(&[(0, 0)], drop);
    assert_eq!(mirror.answered(0), Pieces(2));
    let good = std::mem::replace(&mut desk.legs[0].file, read_only(&mirror.legs[0]));
    assert_eq!(mirror.ends_with(0, [4096, -libc::EIO]), Waiting);
    assert_eq!(mirror.arrives(1, WRITE, 3 * MIB, 4096), Waiting);
    desk.turn(&[(0, 0), (0, 1)], drop);
    assert_eq!(mirror.answered(0), Over(-libc::EIO));
    assert_eq!(mirror.answered(1), Over(-libc::EIO));
    assert_eq!(mirror.says(0).in_use, Legs(0b11));
    desk.legs[0].file = good;
    assert_eq!(mirror.arrives(0, FLUSH, 0, 0), Pieces(1));
    assert_eq!(mirror.requests.moved((0, 0), 0, 9, &mut mirror.entries), None);
    desk.turn(&[(0, 0)], drop);
    assert_eq!(mirror.answered(0), Over(0));
    assert_eq!(mirror.says(0).in_use, Legs(0b01));
    // The legs may differ where a write failed.
    desk.clear_all();
    assert_eq!(mirror.bits(0), [0]);
}

#[test]
fn after_a_kill_bits_stay_and_the_record_catches_up() {
    let mut mirror = Mirror::new();
    let mut desk = mirror.desk();
    for tag in [0, 1] {
        assert_eq!(mirror.arrives(tag, WRITE, u64::from(tag) * MIB, 4096), Waiting);
    }
    desk.turn(&[(0, 0), (0, 1)], drop);
    assert_eq!(mirror.answered(0), Pieces(2));
    assert_eq!(mirror.ends_with(0, [-libc::EIO, 4096]), Waiting);
    drop(desk);
    let mut desk = mirror.desk_of(mirror.own_legs(), true);
    assert_eq!(mirror.says(1).in_use, Legs(0b11));
    // The driver gives it again.
    assert_eq!(mirror.arrives(3, WRITE, MIB, 4096), Pieces(1));
    assert_eq!(mirror.requests.moved((3, 0), 4096, 9, &mut mirror.entries), None);
    desk.turn(&[(0, 3)], drop);
    assert_eq!(mirror.says(1).in_use, Legs(0b10));
    assert_eq!(mirror.answered(3), Over(4096));
    desk.clear_all();
    assert!(mirror.bits(1).is_empty());
    assert_eq!(mirror.bits(0), [0, 1], "nobody writes to a leg that is out");
}

#[test]
fn the_next_clerk_makes_the_change_that_the_last_one_began() {
    let mut mirror = Mirror::new();
    let mut desk = mirror.desk();
    desk.legs[0].file = read_only(&mirror.legs[0]);
    assert_eq!(mirror.arrives(0, FLUSH, 0, 0), Pieces(2));
    assert_eq!(mirror.ends_with(0, [0, -libc::EIO]), Waiting);
    desk.turn(&[(0, 0)], drop);
    let begun = desk.record.take().expect("a record");
    assert_eq!((begun.in_use, mirror.says(0).in_use), (Legs(0b01), Legs(0b11)));
    drop(desk);
    mirror.desk_of(mirror.own_legs(), true).turn(&[], drop);
    let said = mirror.says(0);
    assert_eq!((said.changes, said.generation), (begun.changes, begun.generation));
}

#[test]
fn bits_that_a_start_left_are_cleared_when_nobody_writes_there() {
    let mirror = Mirror::new();
    let mut bitmap = Bitmap::clear([3; 16], mirror.layout().chunks());
    bitmap.put(4, true);
    room::write_bitmap(&mirror.legs[1], &mirror.records[1], &bitmap, [0]).expect("written");
    let mut desk = mirror.desk();
    assert_eq!((mirror.bits(0), mirror.bits(1)), (vec![4], vec![4]));
    desk.clear_all();
    assert!(mirror.bits(0).is_empty() && mirror.bits(1).is_empty());
}

#[test]
fn a_request_of_more_chunks_than_are_counted_fails() {
    let mut mirror = Mirror::new();
    assert_eq!(mirror.arrives(0, 5, 0, 33 * MIB + 4096), Over(-libc::EIO));
}

mod native {
    use super::*;

    fn run(ring: &mut io_uring::IoUring, entries: &Entries) -> io::Result<Vec<u64>> {
        for entry in entries.as_slice() {
            // SAFETY: messages and polls refer to no memory.
            unsafe { ring.submission().push(entry) }.expect("room");
        }
        ring.submit()?;
        Ok(ring.completion().map(|completion| completion.user_data()).collect())
    }

    #[test]
    fn the_clerk_hears_of_waiting_requests_and_rings() {
        let mut mirror = Mirror::new();
        let Layout { size, chunk_shift } = mirror.layout();
        let recorded = Recorded { uuid: [3; 16], size, chunk_shift };
        let tell = |told: Result<i32, io::Error>| assert!(told.is_ok(), "{told:?}");
        let clerk = Clerk::gather(recorded, 1, DEPTH, tell).expect("a clerk");
        let files: Vec<OwnedFd> = std::iter::once(tempfile::tempfile().expect("a file"))
            .chain(mirror.own_legs())
            .map(OwnedFd::from)
            .collect();
        let shared = mirror.state.map_whole().expect("mapped");
        let ends = mirror.ends();
        clerk.order(Order { shared, files: Arc::new(files), ends, recovers: false });
        let (requests, region) = Mirror::queue(&mirror.state, mirror.layout(), clerk.ring());
        (mirror.requests, mirror._region) = (requests, region);

        let mut ring: io_uring::IoUring = io_uring::IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(8)
            .expect("a ring");
        ring.submitter().register_files_sparse(crate::ring::BELL + 1).expect("a table");
        ring.submitter()
            .register_files_update(crate::ring::BELL, &[clerk.bell(0)])
            .expect("the bell");
        mirror.requests.listen(&mut mirror.entries);
        assert!(run(&mut ring, &mirror.entries).expect("armed").is_empty());
        for round in 0..3 {
            assert_eq!(mirror.arrives(2, WRITE, round * MIB, 4096), Waiting);
            let missed = run(&mut ring, &mirror.entries).expect("sent");
            assert!(missed.is_empty(), "the clerk has the message");
            ring.submit_and_wait(1).expect("an answer");
            let completions: Vec<_> = ring.completion().collect();
            assert_eq!(completions.len(), 1);
            assert_eq!(Done::of(completions[0].user_data()), Done::Answered);
            assert!(io_uring::cqueue::more(completions[0].flags()), "it goes on");
            assert_eq!(mirror.answered(2), Pieces(2));
            assert_eq!(mirror.ends_with(2, [4096; 2]), Over(4096));
        }
        assert_eq!(mirror.bits(0), [0, 1, 2]);
        clerk.stop().join().expect("it ends");
        assert!(mirror.bits(0).is_empty(), "nobody writes any more");
        // A message that nobody takes comes back.
        assert_eq!(mirror.arrives(1, WRITE, 0, 4096), Waiting);
        let missed = run(&mut ring, &mirror.entries).expect("sent");
        assert_eq!(missed.into_iter().map(Done::of).collect::<Vec<_>>(), [Done::Missed(1)]);
        mirror.requests.missed(1, -libc::EBADF);
        assert_eq!(mirror.answered(1), Over(-libc::EBADF));
    }
}
