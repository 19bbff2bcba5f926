//! `bpf/blk_request.h` and `bpf/blk_map.h` for Rust: the same structures, and the functions that `native.c`
//! exports.

use std::fmt;
use std::sync::atomic::AtomicU64;

use io_uring::squeue;

/// `BLK_FILES`.
pub(crate) const FILES: usize = 16;
/// `BLK_PIECES`.
pub(crate) const PIECES: usize = 4;
/// `enum blk_op`, as far as it is used.
pub(crate) const OPS: usize = 6;
const BUCKETS: usize = 40;
const STAGES: usize = 2;

/// `BLK_INTENT_CHUNKS`.
pub(crate) const INTENT_CHUNKS: u64 = 33;

/// What engines and the clerk have to know of a mirror with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) uuid: [u8; 16],
    /// Bytes of the device.
    pub(crate) size: u64,
    /// Log2 of the bytes of a chunk; below 63.
    pub(crate) chunk_shift: u32,
}

impl Recorded {
    pub(crate) fn chunks(&self) -> usize {
        self.size.div_ceil(1 << self.chunk_shift) as usize
    }
}

/// `enum blk_kind`.
pub(crate) const KIND_NULL: u32 = 0;
pub(crate) const KIND_LINEAR: u32 = 1;
pub(crate) const KIND_STRIPE: u32 = 2;
pub(crate) const KIND_MIRROR: u32 = 3;
pub(crate) const KIND_POLICY: u32 = 4;

/// `BLK_DATA_PIECE`, in the upper half of a completion's data.
const DATA_PIECE: u64 = 1;
/// `BLK_DATA_CLERK`.
const DATA_CLERK: u64 = 2;
/// `BLK_CLERK_MISSED`.
const CLERK_MISSED: u32 = 0;
const FINISHED: i32 = 1;

/// `struct blk_map`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) kind: u32,
    pub(crate) files: u32,
    pub(crate) copies: u32,
    pub(crate) chunk_shift: u32,
    pub(crate) block_size: u32,
    /// By bit.
    pub(crate) failed: u32,
    pub(crate) size: [u64; FILES],
    pub(crate) end: [u64; FILES],
    pub(crate) one_store: u32,
    /// By bit.
    pub(crate) by_command: u32,
    /// By bit.
    pub(crate) recorded: u32,
    pub(crate) unused: u32,
}

impl Map {
    /// Whether a leg is out.
    pub(crate) fn is_out(&self, leg: usize) -> bool {
        self.failed >> leg & 1 != 0
    }

    /// As the layout before wrote it, which had no number.
    pub(crate) fn of_layout_0(self) -> Self {
        let mut before = Self { one_store: 0, by_command: 0, recorded: 0, ..self };
        if self.kind == KIND_NULL {
            (before.files, before.size[0]) = (0, 0);
        }
        before
    }
}

/// `struct blk_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Config {
    pub(crate) queue: u32,
    pub(crate) depth: u32,
    pub(crate) tag_mask: u32,
    pub(crate) sq_mask: u32,
    pub(crate) cq_mask: u32,
    pub(crate) rings_size: u32,
    pub(crate) entries_size: u32,
    pub(crate) region_size: u32,
    pub(crate) descriptors: u64,
    pub(crate) buffers: u64,
    pub(crate) buffer_size: u64,
    pub(crate) chunks_at: u32,
    pub(crate) chunk_shift: u32,
    pub(crate) chunk_mask: u32,
    pub(crate) clerk: i32,
}

/// `struct blk_descriptor`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Descriptor {
    pub(crate) op_flags: u32,
    pub(crate) sectors: u32,
    pub(crate) start_sector: u64,
    pub(crate) address: u64,
}

/// `struct blk_statistics`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Statistics {
    pub(crate) requests: [u64; OPS],
    pub(crate) bytes: [u64; OPS],
    pub(crate) errors: u64,
    pub(crate) pieces: u64,
    pub(crate) continued: u64,
    pub(crate) turns: u64,
    pub(crate) latency: [[[u32; BUCKETS]; OPS]; STAGES],
}

/// The beginning of a `struct blk_request`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) position: u64,
    began: u64,
    pub(crate) length: u32,
    handed: u32,
    copy: u32,
    /// The clerk's while the request waits.
    pub(crate) error: i32,
    op: u32,
    flags: u32,
    under_way: u16,
    /// [`WAITS_BIT`] or `BLK_WAITS_RECORD`, perhaps with [`WAITS_OVER`].
    pub(crate) waits: u16,
}

/// `BLK_WAITS_BIT`.
pub(crate) const WAITS_BIT: u16 = 1;
/// `BLK_WAITS_OVER`.
pub(crate) const WAITS_OVER: u16 = 4;

/// `struct blk_chunk`, of which `intent.rs` knows more.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
}

/// `struct blk_failure`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Failure {
    pub(crate) when: u64,
    pub(crate) position: u64,
    pub(crate) length: u32,
    pub(crate) op: u32,
    pub(crate) error: i32,
    pub(crate) unused: u32,
}

/// `struct blk_queue`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QueueState {
    pub(crate) gone: u32,
    pub(crate) refused: i32,
    pub(crate) over: u32,
    pub(crate) unused: u32,
    pub(crate) statistics: Statistics,
    pub(crate) failures: [Failure; FILES],
}

const _: () = assert!(size_of::<Map>() == 40 + 16 * FILES);
const _: () = assert!(size_of::<Config>() == 72);
const _: () = assert!(size_of::<Descriptor>() == handoff_sys::ublk::DESCRIPTOR_BYTES);
const _: () = assert!(
    size_of::<QueueState>() == 16 + (2 * OPS + 4) * 8 + STAGES * OPS * BUCKETS * 4 + FILES * 32
);

/// `struct blk_out` over an array of our own.
#[repr(C)]
struct Out {
    entries: *mut squeue::Entry,
    tail: u32,
}

/// `struct blk_ask` and `struct blk_extent`, for the tests of the mappings.
#[cfg(test)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) position: u64,
    pub(crate) length: u32,
    pub(crate) op: u32,
    pub(crate) copy: u32,
    pub(crate) files: u32,
}

#[cfg(test)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) file: u32,
}

unsafe extern "C" {
    static handoff_blk_sizes: [u32; 7];
    fn handoff_blk_arrived(
        config: *const Config,
        region: *mut u8,
        tag: u32,
        descriptor: *const Descriptor,
        now: u64,
        out: *mut Out,
        result: *mut i32,
    ) -> i32;
    fn handoff_blk_moved(
        config: *const Config,
        region: *mut u8,
        tag: u32,
        slot: u32,
        moved: i32,
        now: u64,
        out: *mut Out,
        result: *mut i32,
    ) -> i32;
    fn handoff_blk_put_command(
        config: *const Config,
        out: *mut Out,
        command: u32,
        tag: u32,
        result: i32,
    );
    fn handoff_blk_answered(
        config: *const Config,
        region: *mut u8,
        tag: u32,
        now: u64,
        out: *mut Out,
        result: *mut i32,
    ) -> i32;
    fn handoff_blk_missed(config: *const Config, region: *mut u8, tag: u32, why: i32);
    fn handoff_blk_put_listen(config: *const Config, out: *mut Out);
    #[cfg(test)]
    fn handoff_blk_intent_begin(chunks: *const Chunk, mask: u32, first: u64, count: u32) -> i32;
    #[cfg(test)]
    fn handoff_blk_intent_end(chunks: *const Chunk, mask: u32, first: u64, count: u32);
    #[cfg(test)]
    fn handoff_blk_intent_keep(chunks: *const Chunk, mask: u32, first: u64, count: u32);
    fn handoff_blk_is_legs(error: i32) -> i32;
    fn handoff_blk_take_out(
        map: *mut Map,
        queue: *mut QueueState,
        legs: u32,
        noted: *const Failure,
    ) -> i32;
    #[cfg(test)]
    fn handoff_blk_locate(map: *const Map, ask: *mut Ask, extent: *mut Extent) -> i32;
}

/// Bytes of a region before its requests: the map's page, and the queue's.
pub(crate) const MAP_SPACE: usize = 4096;
pub(crate) const QUEUE_SPACE: usize = 8192;

/// Bytes of one request's record.
pub(crate) fn request_bytes() -> usize {
    // SAFETY: a constant array.
    unsafe { handoff_blk_sizes[5] as usize }
}

/// What a completion was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// A command to the driver: a tag's, or another with a number of its engine.
    Command(u32),
    /// A piece of a tag's request.
    Piece { tag: u32, slot: u32 },
    /// The clerk did not get the message that a tag's request waits.
    Missed(u32),
    /// The clerk has answered requests.
    Answered,
}

impl Done {
    pub(crate) fn of(user_data: u64) -> Self {
        let number = user_data as u32 & 0xffff;
        match user_data >> 32 {
            DATA_PIECE => Self::Piece { tag: number, slot: user_data as u32 >> 16 },
            DATA_CLERK if user_data as u32 >> 16 == CLERK_MISSED => Self::Missed(number),
            DATA_CLERK => Self::Answered,
            _ => Self::Command(number),
        }
    }
}

/// Submission entries that a completion leads to.
pub(crate) struct Entries {
    entries: [squeue::Entry; PIECES],
    len: usize,
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl Entries {
    pub(crate) fn new() -> Self {
        Self { entries: std::array::from_fn(|_| io_uring::opcode::Nop::new().build()), len: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[squeue::Entry] {
        &self.entries[..self.len]
    }

    fn out(&mut self) -> Out {
        Out { entries: self.entries.as_mut_ptr(), tail: 0 }
    }
}

/// The progress of a queue's requests.
///
/// The region must be a live [`Mapping`](crate::state::Mapping) of the size that the configuration says,
/// and nobody else may write to it during a call, except the word of failed legs.
pub(crate) struct Requests {
    config: Config,
    region: *mut u8,
}

impl Requests {
    /// # Safety
    ///
    /// `region` must be a `struct blk_region` with room for `config.tag_mask + 1` requests, stay mapped as
    /// long as this exists, and be used only by this.
    pub(crate) unsafe fn new(config: Config, region: *mut u8) -> Self {
        // The index of an entry for `Entries`.
        Self { config: Config { sq_mask: PIECES as u32 - 1, ..config }, region }
    }

    /// A request has arrived; returns its result if it takes no I/O.
    pub(crate) fn arrived(
        &mut self,
        tag: u32,
        descriptor: &Descriptor,
        now: u64,
        entries: &mut Entries,
    ) -> Option<i32> {
        let (mut out, mut result) = (entries.out(), 0);
        // SAFETY: all pointers are to live values, the region by the contract of `new`. There are at most
        // as many pieces as entries have room for.
        let end = unsafe {
            handoff_blk_arrived(
                &self.config,
                self.region,
                tag,
                descriptor,
                now,
                &mut out,
                &mut result,
            )
        };
        entries.len = out.tail as usize;
        (end == FINISHED).then_some(result)
    }

    /// A piece has ended; returns the request's result, if it was the last.
    pub(crate) fn moved(
        &mut self,
        (tag, slot): (u32, u32),
        moved: i32,
        now: u64,
        entries: &mut Entries,
    ) -> Option<i32> {
        let (mut out, mut result) = (entries.out(), 0);
        // SAFETY: as in `arrived`; tag and slot are masked there.
        let end = unsafe {
            handoff_blk_moved(
                &self.config,
                self.region,
                tag,
                slot,
                moved,
                now,
                &mut out,
                &mut result,
            )
        };
        entries.len = out.tail as usize;
        (end == FINISHED).then_some(result)
    }

    /// Goes on with a tag's request if it waited and the clerk has answered it; returns its result, if it has one.
    pub(crate) fn answered(&mut self, tag: u32, now: u64, entries: &mut Entries) -> Option<i32> {
        let (mut out, mut result) = (entries.out(), 0);
        // SAFETY: as in `arrived`; the tag is masked there.
        let end = unsafe {
            handoff_blk_answered(&self.config, self.region, tag, now, &mut out, &mut result)
        };
        entries.len = out.tail as usize;
        (end == FINISHED).then_some(result)
    }

    /// The clerk will not hear of a tag's request; it fails.
    pub(crate) fn missed(&mut self, tag: u32, why: i32) {
        // SAFETY: as in `arrived`; the tag is masked there.
        unsafe { handoff_blk_missed(&self.config, self.region, tag, why) };
    }

    /// Listens to the clerk, as an entry.
    pub(crate) fn listen(&self, entries: &mut Entries) {
        let mut out = entries.out();
        // SAFETY: there is room for one entry.
        unsafe { handoff_blk_put_listen(&self.config, &mut out) };
        entries.len = out.tail as usize;
    }

    /// The loop has made a turn.
    pub(crate) fn turn(&mut self) {
        // SAFETY: inside of the region, by the contract of `new`.
        unsafe { (*self.region.add(MAP_SPACE).cast::<QueueState>()).statistics.turns += 1 };
    }

    /// The command `number` of a tag, as an entry.
    pub(crate) fn command(&self, number: u32, tag: u32, result: i32, entries: &mut Entries) {
        let mut out = entries.out();
        // SAFETY: there is room for one entry.
        unsafe { handoff_blk_put_command(&self.config, &mut out, number, tag, result) };
        entries.len = out.tail as usize;
    }
}

/// Whether an error says something about the leg that it came from.
pub(crate) fn is_legs(error: i32) -> bool {
    // SAFETY: it takes a number.
    unsafe { handoff_blk_is_legs(error) != 0 }
}

/// Takes legs out, and notes why. `false`: none would be left.
///
/// # Safety
///
/// Both must be those of a device's state, and stay mapped. Only whoever takes a leg out writes its note.
pub(crate) unsafe fn take_out(
    map: *mut Map,
    queue: *mut QueueState,
    legs: u32,
    noted: &Failure,
) -> bool {
    // SAFETY: the caller's duty.
    unsafe { handoff_blk_take_out(map, queue, legs, noted) != 0 }
}

/// The functions of `bpf/blk_intent.h`, which engines call by themselves.
#[cfg(test)]
pub(crate) mod intent {
    use std::ops::Range;

    use super::Chunk;

    fn given(chunks: &[Chunk], range: &Range<usize>) -> (*const Chunk, u32, u64, u32) {
        assert!(range.end <= chunks.len());
        (chunks.as_ptr(), u32::MAX, range.start as u64, range.len() as u32)
    }

    pub(crate) fn begin(chunks: &[Chunk], range: Range<usize>) -> bool {
        let (chunks, mask, first, count) = given(chunks, &range);
        // SAFETY: the range is within the slice, whose numbers are atomic on both sides.
        unsafe { super::handoff_blk_intent_begin(chunks, mask, first, count) != 0 }
    }

    pub(crate) fn end(chunks: &[Chunk], range: Range<usize>) {
        let (chunks, mask, first, count) = given(chunks, &range);
        // SAFETY: as above.
        unsafe { super::handoff_blk_intent_end(chunks, mask, first, count) }
    }

    pub(crate) fn keep(chunks: &[Chunk], range: Range<usize>) {
        let (chunks, mask, first, count) = given(chunks, &range);
        // SAFETY: as above.
        unsafe { super::handoff_blk_intent_keep(chunks, mask, first, count) }
    }
}

#[cfg(test)]
pub(crate) fn locate(map: &Map, mut ask: Ask) -> Option<Extent> {
    let mut extent = Extent::default();
    // SAFETY: all three are live values of the structures that the function takes.
    let found = unsafe { handoff_blk_locate(map, &mut ask, &mut extent) };
    (found == 0).then_some(extent)
}

/// The entries as plain numbers of 32 bits.
#[cfg(test)]
impl Entries {
    pub(crate) fn words(&self) -> Vec<[u32; 16]> {
        // SAFETY: an entry is 64 plain bytes.
        self.as_slice().iter().map(|entry| unsafe { std::mem::transmute_copy(entry) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::hint;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;
    use crate::state::{Mapping, Rooms, State};
    use crate::{Kind, Spec, target};

    /// A queue of one request of a mirror.
    struct Queue {
        // Dropped before the memory that it works in.
        requests: Requests,
        region: Mapping,
    }

    impl Queue {
        fn new() -> Self {
            Self::of_mirror(3, 1, false).remove(0)
        }

        /// All queues of a mirror of so many legs, on one file system or not.
        fn of_mirror(legs: usize, queues: u16, one_store: bool) -> Vec<Self> {
            let spec = Spec { target: Kind::Mirror, ..Spec::default() };
            let (mut map, _) = target::lay_out(&spec, &vec![1 << 20; legs]).expect("a mirror");
            map.one_store = one_store.into();
            let file = tempfile::tempfile().expect("a file");
            let state =
                State::begin(file, &map, Rooms { queues, depth: 1, chunks: 0 }).expect("a state");
            let queue = |queue| {
                let region = state.map(queue).expect("mapped");
                let config = Config { depth: 1, ..Config::default() };
                // SAFETY: the region has room for one request, and stays while this lives.
                let requests = unsafe { Requests::new(config, region.as_ptr()) };
                Self { requests, region }
            };
            (0..queues).map(queue).collect()
        }

        /// The legs that are out, by bit.
        fn failed(&self) -> u32 {
            // SAFETY: the map is at the region's beginning; other queues write the word as a whole.
            unsafe { AtomicU32::from_ptr(&raw mut (*self.region.as_ptr().cast::<Map>()).failed) }
                .load(Ordering::Acquire)
        }

        /// Puts all legs back in, with nothing noted.
        fn renew(&mut self) {
            // SAFETY: as above, and the queue's state is this queue's alone.
            unsafe {
                AtomicU32::from_ptr(&raw mut (*self.region.as_ptr().cast::<Map>()).failed)
                    .store(0, Ordering::Release);
                self.region.as_ptr().add(MAP_SPACE).write_bytes(0, size_of::<QueueState>());
            }
        }

        fn state(&self) -> QueueState {
            // SAFETY: the queue's state is behind the map's space.
            unsafe { self.region.as_ptr().add(MAP_SPACE).cast::<QueueState>().read() }
        }

        /// Runs a request to its end; the pieces for each file end with the given results.
        fn request(&mut self, op: u32, results: [i32; 3]) -> i32 {
            let descriptor =
                Descriptor { op_flags: op, sectors: 8, start_sector: 16, ..Descriptor::default() };
            let mut entries = Entries::new();
            let mut waiting = std::collections::VecDeque::new();
            let mut end = self.requests.arrived(0, &descriptor, 7, &mut entries);
            loop {
                if let Some(result) = end {
                    return result;
                }
                for bytes in entries.words() {
                    let Done::Piece { slot, .. } =
                        Done::of(u64::from(bytes[9]) << 32 | u64::from(bytes[8]))
                    else {
                        panic!("{bytes:?}")
                    };
                    let file = bytes[1] as usize - 1;
                    let whole = if op <= 1 { bytes[6] as i32 } else { 0 };
                    waiting
                        .push_back((slot, if results[file] == 0 { whole } else { results[file] }));
                }
                let (slot, result) = waiting.pop_front().expect("something is under way");
                end = self.requests.moved((0, slot), result, 9, &mut entries);
            }
        }
    }

    const READ: u32 = 0;
    const WRITE: u32 = 1;
    const DISCARD: u32 = 3;

    #[test]
    fn what_is_wrong_with_a_request_costs_no_leg() {
        for error in [
            libc::EINVAL,
            libc::EFAULT,
            libc::E2BIG,
            libc::EOPNOTSUPP,
            libc::ENOMEM,
            libc::EAGAIN,
            libc::EINTR,
            libc::ECANCELED,
        ] {
            for op in [READ, WRITE, DISCARD] {
                let mut queue = Queue::new();
                assert!(queue.request(op, [-error; 3]) < 0, "{error} is the caller's");
                // Only one of them reports it.
                for leg in 0..3 {
                    let mut results = [0; 3];
                    results[leg] = -error;
                    queue.request(op, results);
                }
                assert_eq!(queue.failed(), 0, "operation {op}, error {error}");
                assert!(
                    queue.request(READ, [0; 3]) == 4096 && queue.request(WRITE, [0; 3]) == 4096
                );
            }
        }
    }

    #[test]
    fn a_leg_is_out_after_an_error_of_its_own_which_is_noted() {
        for error in [libc::EIO, libc::ENOSPC, libc::ENODEV, libc::ETIMEDOUT, libc::EROFS] {
            let mut queue = Queue::new();
            assert_eq!(queue.request(WRITE, [0, -error, 0]), 4096, "the others have it");
            assert_eq!(queue.failed(), 0b010);
            let noted = queue.state().failures[1];
            assert_eq!(
                (noted.op, noted.position, noted.length, noted.when),
                (WRITE, 8192, 4096, 7)
            );
            assert_eq!(noted.error, if error == libc::ENODEV { -libc::EIO } else { -error });
            // The second one notes itself, the last one stays.
            assert_eq!(queue.request(WRITE, [0, 0, -error]), 4096);
            assert_eq!(queue.failed(), 0b110);
            assert!(queue.request(WRITE, [-error, 0, 0]) < 0);
            assert_eq!(queue.failed(), 0b110);
            assert_eq!(queue.state().failures[0].when, 0);
            assert_eq!(queue.state().failures[1].position, 8192, "the first one counts");
        }
    }

    const FLUSH: u32 = 2;
    const ZEROES: u32 = 5;

    #[test]
    fn a_file_system_without_room_costs_a_leg_only_if_another_has_room() {
        for error in [libc::ENOSPC, libc::EDQUOT] {
            for op in [WRITE, DISCARD, ZEROES] {
                let done = if op == WRITE { 4096 } else { 0 };
                // One file system below all: whoever came first had room.
                let mut queue = Queue::of_mirror(3, 1, true).remove(0);
                for full in 0..8 {
                    let results =
                        [0, 1, 2].map(|leg| if full >> leg & 1 != 0 { -error } else { 0 });
                    let expected = if full == 0 { done } else { -error };
                    assert_eq!(queue.request(op, results), expected, "operation {op}, {full:03b}");
                    assert_eq!(queue.failed(), 0, "operation {op}, {full:03b}");
                }
                // Several, of which none has room: no leg lacks what another has.
                let mut queue = Queue::new();
                assert_eq!(queue.request(op, [-error; 3]), -error);
                assert_eq!((queue.failed(), queue.state().failures[0].when), (0, 0));
                // Several, of which one has room: the others are out, and say why.
                assert_eq!(queue.request(op, [-error, 0, -error]), done);
                assert_eq!(queue.failed(), 0b101);
                for leg in [0, 2] {
                    let noted = queue.state().failures[leg];
                    assert_eq!((noted.op, noted.error, noted.position), (op, -error, 8192));
                }
                assert_eq!(queue.request(op, [0, -error, 0]), -error, "the last one stays");
                assert_eq!(queue.failed(), 0b101);
            }
            // A flush says of earlier writes that one leg has lost them.
            let mut queue = Queue::of_mirror(3, 1, true).remove(0);
            assert_eq!(queue.request(FLUSH, [0, -error, 0]), 0);
            assert_eq!(queue.failed(), 0b010);
        }
        // A leg that fails otherwise is out, also beside one without room.
        for (results, failed) in [
            ([-libc::EIO, -libc::ENOSPC, -libc::ENOSPC], 0b001),
            ([-libc::ENOSPC, -libc::EIO, 0], 0b011),
        ] {
            let mut queue = Queue::new();
            let expected = if failed == 0b001 { -libc::ENOSPC } else { 4096 };
            assert_eq!(queue.request(WRITE, results), expected);
            assert_eq!(queue.failed(), failed);
        }
    }

    /// Two threads that reach the same point at the same time, again and again.
    #[derive(Default)]
    struct Meeting(AtomicU32);

    impl Meeting {
        fn meet(&self, number: u32) {
            self.0.fetch_add(1, Ordering::AcqRel);
            let mut turns = 0u32;
            while self.0.load(Ordering::Acquire) < 2 * (number + 1) {
                turns += 1;
                match turns % 1024 {
                    // The other may want this processor.
                    0 => thread::yield_now(),
                    _ => hint::spin_loop(),
                }
            }
        }
    }

    #[test]
    fn two_queues_leave_a_mirror_its_last_leg() {
        const ROUNDS: u32 = 500;
        let mut queues = Queue::of_mirror(2, 2, false);
        let meeting = Meeting::default();
        thread::scope(|scope| {
            for (leg, queue) in queues.iter_mut().enumerate() {
                struct Sent<'a>(&'a mut Queue);
                // SAFETY: each queue is used by one thread, and what both write is an atomic word.
                unsafe impl Send for Sent<'_> {}
                let (sent, meeting) = (Sent(queue), &meeting);
                scope.spawn(move || {
                    let Sent(queue) = { sent };
                    let write = Descriptor { op_flags: WRITE, sectors: 8, ..Descriptor::default() };
                    let mut entries = Entries::new();
                    for round in 0..ROUNDS {
                        assert_eq!(queue.requests.arrived(0, &write, 7, &mut entries), None);
                        meeting.meet(3 * round);
                        // Each has a write to another leg only.
                        queue.requests.moved((0, leg as u32), -libc::EIO, 9, &mut entries);
                        meeting.meet(3 * round + 1);
                        let out = queue.failed();
                        assert_ne!(out, 0b11, "round {round}: no leg is left");
                        let result =
                            queue.requests.moved((0, 1 - leg as u32), 4096, 9, &mut entries);
                        let is_last = out >> leg & 1 == 0;
                        assert_eq!(result, Some(if is_last { -libc::EIO } else { 4096 }));
                        assert_eq!(queue.state().failures[leg].when != 0, !is_last, "noted");
                        meeting.meet(3 * round + 2);
                        queue.renew();
                    }
                });
            }
        });
    }

    #[test]
    fn both_sides_have_the_same_structures() {
        // SAFETY: a constant array.
        let sizes = unsafe { handoff_blk_sizes };
        let ours = [
            size_of::<Map>(),
            size_of::<Config>(),
            size_of::<QueueState>(),
            MAP_SPACE,
            MAP_SPACE + QUEUE_SPACE,
        ];
        assert_eq!(sizes.map(|size| size as usize)[..5], ours);
        assert_eq!(sizes[6] as usize, std::mem::offset_of!(Request, waits));
    }
}
