//! A view of memory that another party may write at the same time.
//!
//! Such memory is never a `&[u8]`: the compiler assumes that the bytes of a slice do not change. A [`View`]
//! copies out, and a [`ViewMut`] also in, with relaxed atomic accesses, so a concurrent writer can make the bytes wrong
//! but not the program.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// Memory of a fixed length that others may write while you read it: copy what you check before you check it.
///
/// ```no_run
/// # fn example(span: &handoff::MappedSpan) {
/// let mut head = [0; 4];
/// span.view().read(0, &mut head);
/// println!("{head:?}, and {} bytes behind it", span.len() - head.len());
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

/// A [`View`] that you can write through, too.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut region = handoff::SharedRegion::memfd(4096)?;
/// # let buffer = region.take(4096).unwrap();
/// let view = buffer.view();
/// view.write(0, &[7; 8]);
/// let mut bytes = [0; 8];
/// view.read(0, &mut bytes);
/// assert_eq!((view.len(), bytes), (4096, [7; 8]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ViewMut<'a>(View<'a>);

impl<'a> Deref for ViewMut<'a> {
    type Target = View<'a>;

    fn deref(&self) -> &View<'a> {
        &self.0
    }
}

impl View<'_> {
    /// # Safety
    ///
    /// `len` bytes from `start` must stay mapped and readable for the view's lifetime, and this process must access
    /// them through views only.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the range is mapped for the view's lifetime and `AtomicU8` permits other writers. Where it can only
        // be read, it is: by relaxed loads of a word at most, which read-only memory allows.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }

    fn words(bytes: &[AtomicU8]) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        // SAFETY: every byte pattern is an `AtomicU64` and `align_to` keeps alignment and bounds.
        unsafe { bytes.align_to() }
    }

    /// Copies the bytes at `offset` out.
    ///
    /// # Panics
    ///
    /// When the range reaches past the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let (head, words, tail) = Self::words(&self.bytes()[offset..offset + into.len()]);
        let (into_head, rest) = into.split_at_mut(head.len());
        let (into_words, into_tail) = rest.split_at_mut(words.len() * WORD);
        for (to, from) in into_head.iter_mut().zip(head) {
            *to = from.load(Relaxed);
        }
        for (to, from) in into_words.chunks_exact_mut(WORD).zip(words) {
            to.copy_from_slice(&from.load(Relaxed).to_ne_bytes());
        }
        for (to, from) in into_tail.iter_mut().zip(tail) {
            *to = from.load(Relaxed);
        }
    }
}

impl ViewMut<'_> {
    /// # Safety
    ///
    /// As [`View::new`], and they must be writable.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: as the caller says.
        Self(unsafe { View::new(start, len) })
    }

    /// Copies `from` to `offset`.
    ///
    /// # Panics
    ///
    /// When the range reaches past the end.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let (head, words, tail) = View::words(&self.bytes()[offset..offset + from.len()]);
        let (from_head, rest) = from.split_at(head.len());
        let (from_words, from_tail) = rest.split_at(words.len() * WORD);
        for (to, from) in head.iter().zip(from_head) {
            to.store(*from, Relaxed);
        }
        for (to, from) in words.iter().zip(from_words.chunks_exact(WORD)) {
            to.store(u64::from_ne_bytes(from.try_into().expect("a chunk is one word")), Relaxed);
        }
        for (to, from) in tail.iter().zip(from_tail) {
            to.store(*from, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(offset in 0usize..40, data in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut memory = vec![0u8; 100];
            // SAFETY: the vector outlives the view and nothing else touches it meanwhile.
            let view = unsafe { ViewMut::new(NonNull::new(memory.as_mut_ptr()).unwrap(), 100) };
            view.write(offset, &data);
            let mut back = vec![0u8; data.len()];
            view.read(offset, &mut back);
            prop_assert_eq!(&back, &data);
            let mut rest = vec![1u8; offset];
            view.read(0, &mut rest);
            prop_assert!(rest.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    #[should_panic]
    fn a_range_past_the_end_panics() {
        let mut memory = [0u8; 8];
        // SAFETY: as above.
        let view = unsafe { ViewMut::new(NonNull::new(memory.as_mut_ptr()).unwrap(), 8) };
        view.write(5, &[0; 4]);
    }
}
