//! The buffers of a pool: which are free, who waits for one, and the holds of pieces on those that are out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use super::backing::Backing;
use crate::sync::{AtomicU32, Mutex, MutexGuard, fence};

pub(super) struct Shared {
    pub(super) memory: Arc<Backing>,
    pub(super) len: usize,
    /// From the start of one buffer to that of the next.
    pub(super) stride: usize,
    /// How many pieces of each buffer there are.
    pub(super) pieces: Box<[AtomicU32]>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// Numbers of the free buffers. While somebody waits there are none.
    pub(super) free: Vec<u32>,
    pub(super) waiting: VecDeque<Waiting>,
    /// Tells waiters apart.
    pub(super) next: u64,
}

pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) stands: Stands,
}

pub(super) enum Stands {
    InLine(Waker),
    /// It was given this buffer, and is woken for it.
    Has(u32),
}

/// The hold of a piece on a pool's buffer. Dropping the last one frees the buffer.
pub(crate) struct Chunk {
    /// `None` once it is given back.
    pool: Option<Arc<Shared>>,
    pub(super) number: u32,
    _room: RoomForATag,
}

/// Has values that mean nothing, so that an enum of chunks and pointers is no larger than a chunk.
#[derive(Clone, Copy)]
#[repr(u8)]
enum RoomForATag {
    It,
}

impl Chunk {
    /// The first hold on a buffer, which has no other.
    pub(super) fn first(pool: &Arc<Shared>, number: u32) -> Self {
        pool.pieces[number as usize].store(1, Relaxed);
        Self { pool: Some(Arc::clone(pool)), number, _room: RoomForATag::It }
    }

    pub(super) fn pool(&self) -> &Arc<Shared> {
        self.pool.as_ref().expect("it is out")
    }

    fn pieces(&self) -> &AtomicU32 {
        &self.pool().pieces[self.number as usize]
    }

    /// Gives it up; returns the waiter to wake.
    pub(crate) fn give_back(mut self) -> Option<Waker> {
        self.leave()
    }

    fn leave(&mut self) -> Option<Waker> {
        self.pool.as_ref()?;
        let is_last = self.pieces().fetch_sub(1, Release) == 1;
        let pool = self.pool.take()?;
        if !is_last {
            return None;
        }
        // Whatever other threads did to their pieces comes before the next use of the buffer.
        fence(Acquire);
        pool.give_back(self.number)
    }

    /// The memory of the pool.
    #[inline]
    pub(crate) fn memory(&self) -> &Arc<Backing> {
        &self.pool().memory
    }

    /// Whether both are of the same buffer.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.number == other.number && Arc::ptr_eq(self.pool(), other.pool())
    }
}

impl Clone for Chunk {
    fn clone(&self) -> Self {
        // There is one already, so it can't be given back meanwhile. Each piece has some bytes of the buffer, or a start
        // of its own, so their number stays far below the limit.
        let before = self.pieces().fetch_add(1, Relaxed);
        assert!(before < u32::MAX / 2, "a buffer has too many pieces");
        Self { pool: self.pool.clone(), number: self.number, _room: self._room }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(waker) = self.leave() {
            waker.wake();
        }
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_back(&self, number: u32) -> Option<Waker> {
        let mut state = self.state();
        let in_line = |waiting: &&mut Waiting| matches!(waiting.stands, Stands::InLine(_));
        match state.waiting.iter_mut().find(in_line) {
            Some(first) => match std::mem::replace(&mut first.stands, Stands::Has(number)) {
                Stands::InLine(waker) => Some(waker),
                Stands::Has(_) => unreachable!("it stands in line"),
            },
            None => {
                state.free.push(number);
                None
            }
        }
    }
}
