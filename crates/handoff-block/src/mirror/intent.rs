//! Which chunks writes may go to: shared by the queues' engines and the clerk, the thread of the server that writes
//! the bitmap.
//!
//! Contracts:
//! - a write goes to a chunk only between [`begin`](Chunks::begin) and [`end`](Chunks::end), and `begin` succeeds only
//!   while the chunk's bit is durable on every leg in use;
//! - a bit is cleared after a flush of all legs in use that began when the chunk had no writes under way, if none has
//!   begun since;
//! - the counts only rise, so a write that begins and ends during that flush is seen.

use std::collections::BTreeSet;
#[cfg(test)]
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::bitmap::Bitmap;
use crate::request::Chunk;
#[cfg(test)]
use crate::request::intent;

/// In `begun`: the bit is durable on every leg in use.
const SET: u64 = 1 << 63;
/// In `begun`: the legs may differ there, until a start makes them equal.
const KEPT: u64 = 1 << 62;
const COUNT: u64 = KEPT - 1;

/// All chunks; they outlive a server. Engines begin and end writes by `bpf/blk_intent.h`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks<'a>(pub(super) &'a [Chunk]);

impl Chunks<'_> {
    pub(super) fn is_set(self, chunk: usize) -> bool {
        self.0[chunk].begun.load(Acquire) & SET != 0
    }

    /// Begins a write to some chunks. `false`: their bits are not all set; ask the clerk, and try again when it has
    /// set them.
    #[cfg(test)]
    pub(super) fn begin(self, chunks: Range<usize>) -> bool {
        intent::begin(self.0, chunks)
    }

    /// All legs in use have what was written.
    #[cfg(test)]
    pub(super) fn end(self, chunks: Range<usize>) {
        intent::end(self.0, chunks);
    }

    /// A write ended with an error that took no leg out, so the legs may differ.
    #[cfg(test)]
    pub(super) fn keep(self, chunks: Range<usize>) {
        intent::keep(self.0, chunks);
    }

    /// The server was killed, with all that it had under way: requests begin anew.
    pub(super) fn begin_anew(self) {
        for chunk in self.0 {
            chunk.ended.store(chunk.begun.load(Relaxed) & COUNT, Relaxed);
        }
    }

    /// Says that the bits of some chunks are durable on every leg in use.
    pub(super) fn confirm(self, chunks: impl IntoIterator<Item = usize>) {
        for chunk in chunks {
            self.0[chunk].begun.fetch_or(SET, Release);
        }
    }

    /// The flags and count of a chunk without writes under way whose bit may be cleared.
    fn idle(self, chunk: usize) -> Option<u64> {
        // `ended` first: so `begun` is never the older one, and both are equal only if nothing is under way.
        let ended = self.0[chunk].ended.load(SeqCst);
        let begun = self.0[chunk].begun.load(SeqCst);
        (begun & (SET | KEPT) == SET && begun & COUNT == ended).then_some(begun)
    }
}

/// What the clerk knows. It writes one thing at a time.
#[derive(Debug)]
pub(super) struct Clerk {
    /// As the legs have it, or will after the write under way.
    pub(super) bitmap: Bitmap,
    /// By chunk: idle at the last look.
    seen: Vec<Option<u64>>,
    /// Idle at two looks.
    quiet: Vec<(usize, u64)>,
}

/// Pages of the bitmap to write.
pub(super) type Pages = BTreeSet<usize>;

impl Clerk {
    /// With bits that the legs have. All memory is taken now.
    pub(super) fn new(bitmap: Bitmap) -> Self {
        let count = bitmap.len();
        let mut quiet = vec![(0, 0); count];
        quiet.clear();
        Self { bitmap, seen: vec![None; count], quiet }
    }

    /// Takes over after a kill. A bit that is set only on the legs is of no use.
    pub(super) fn adopt(&mut self, chunks: Chunks<'_>) {
        for chunk in 0..chunks.0.len() {
            self.bitmap.put(chunk, chunks.is_set(chunk));
        }
    }

    /// Sets the bits of chunks. Write these pages to every leg in use, flush, and then say so
    /// ([`Chunks::confirm`]).
    pub(super) fn set(&mut self, wanted: impl IntoIterator<Item = usize>) -> Pages {
        let mut pages = Pages::new();
        for chunk in wanted {
            self.bitmap.put(chunk, true);
            pages.insert(Bitmap::page_of(chunk));
        }
        pages
    }

    /// Looks for chunks that have been idle since the last look. If there are any, flush all legs in use, and go on
    /// with [`flushed`](Self::flushed).
    pub(super) fn look(&mut self, chunks: Chunks<'_>) -> bool {
        self.quiet.clear();
        for (chunk, seen) in self.seen.iter_mut().enumerate() {
            let idle = chunks.idle(chunk);
            match idle {
                Some(now) if *seen == idle => self.quiet.push((chunk, now)),
                _ => *seen = idle,
            }
        }
        !self.quiet.is_empty()
    }

    /// Clears the bits of chunks that are idle since the look. Write these pages to every leg in use before anything
    /// else; they need not be flushed.
    pub(super) fn flushed(&mut self, chunks: Chunks<'_>) -> Pages {
        let mut pages = Pages::new();
        for (chunk, idle) in self.quiet.drain(..) {
            let begun = &chunks.0[chunk].begun;
            if begun.compare_exchange(idle, idle & !SET, SeqCst, Relaxed).is_ok() {
                self.bitmap.put(chunk, false);
                self.seen[chunk] = None;
                pages.insert(Bitmap::page_of(chunk));
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> (Vec<Chunk>, Clerk) {
        let bitmap = Bitmap::clear([1; 16], 8);
        let memory: Vec<_> = (0..8).map(|_| Chunk::default()).collect();
        (memory, Clerk::new(bitmap))
    }

    fn set(chunks: Chunks<'_>, clerk: &mut Clerk, wanted: Range<usize>) {
        assert_eq!(clerk.set(wanted.clone()), Pages::from([0]));
        chunks.confirm(wanted);
    }

    #[test]
    fn a_write_waits_until_all_its_bits_are_set() {
        let (memory, mut clerk) = new();
        let chunks = Chunks(&memory);
        assert!(!chunks.begin(2..4));
        set(chunks, &mut clerk, 2..3);
        assert!(!chunks.begin(2..4), "one of two");
        set(chunks, &mut clerk, 3..4);
        assert!(chunks.begin(2..4));
        assert!(!clerk.look(chunks) && !clerk.look(chunks), "it is under way");
        chunks.end(2..4);
        assert!(!clerk.look(chunks), "seen once");
        assert!(clerk.look(chunks));
        assert_eq!(clerk.flushed(chunks), Pages::from([0]));
        assert_eq!(clerk.bitmap.set().count(), 0);
        assert!(!chunks.begin(2..4));
    }

    #[test]
    fn a_write_during_the_flush_keeps_the_bit() {
        let (memory, mut clerk) = new();
        let chunks = Chunks(&memory);
        set(chunks, &mut clerk, 0..2);
        clerk.look(chunks);
        assert!(clerk.look(chunks));
        // It is over before the flush, which need not have carried it.
        assert!(chunks.begin(0..1));
        chunks.end(0..1);
        assert_eq!(clerk.flushed(chunks), Pages::from([0]));
        assert!(chunks.is_set(0) && !chunks.is_set(1));
        assert!(clerk.bitmap.set().eq([0]));
        assert!(!clerk.look(chunks) && clerk.look(chunks));
    }

    #[test]
    fn a_chunk_whose_write_failed_stays_set() {
        let (memory, mut clerk) = new();
        let chunks = Chunks(&memory);
        set(chunks, &mut clerk, 0..1);
        assert!(chunks.begin(0..1));
        chunks.keep(0..1);
        chunks.begin_anew();
        assert!(!clerk.look(chunks) && !clerk.look(chunks));
        assert!(chunks.begin(0..1), "writes go on");
    }

    #[test]
    fn after_a_kill_counts_begin_anew_and_bits_stay() {
        let (memory, mut clerk) = new();
        let chunks = Chunks(&memory);
        set(chunks, &mut clerk, 0..1);
        assert!(chunks.begin(0..1));
        // The next clerk knows nothing of a bit that had only been written.
        clerk.set(5..6);
        chunks.begin_anew();
        clerk.adopt(chunks);
        assert!(clerk.bitmap.set().eq([0]));
        assert!(!clerk.look(chunks) && clerk.look(chunks));
    }
}
