//! All lanes of a driver: their numbers, and which have something to submit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::op::lane::LaneShared;

/// All lanes of a driver, by their numbers.
#[derive(Default)]
pub(crate) struct Lanes {
    table: RefCell<Vec<Option<Rc<LaneShared>>>>,
    /// Lanes made so far. A lane that gets the number of an earlier one begins with other generations.
    made: Cell<u32>,
    /// Requests that have not completed, and return signals that have not come.
    pub(crate) held: Cell<u32>,
    /// Lanes with something to submit.
    pub(super) marked: RefCell<Vec<Rc<LaneShared>>>,
    /// Lanes for which the ring had no room.
    pub(super) stalled: RefCell<Vec<Rc<LaneShared>>>,
}

impl Lanes {
    /// Makes a lane by `make`, which is given its number and its first generation.
    pub(crate) fn open(&self, make: impl FnOnce(u16, u32) -> LaneShared) -> Result<Rc<LaneShared>> {
        let mut table = self.table.borrow_mut();
        let free = table.iter().position(Option::is_none).unwrap_or(table.len());
        let number = u16::try_from(free).map_err(|_| Error::Busy { limit: 1 << 16 })?;
        let made = self.made.replace(self.made.get().wrapping_add(1));
        let lane = Rc::new(make(number, made << 12));
        if free == table.len() {
            table.push(None);
        }
        table[free] = Some(Rc::clone(&lane));
        Ok(lane)
    }

    /// A lane ends. Its socket may go with it, and leaves the ring's table.
    pub(crate) fn close(&self, lane: &LaneShared) {
        let gone = self.table.borrow_mut()[usize::from(lane.number)].take();
        drop(gone);
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<Rc<LaneShared>> {
        self.table.borrow().get(number).cloned().flatten()
    }

    pub(crate) fn all(&self) -> Vec<Rc<LaneShared>> {
        self.table.borrow().iter().flatten().cloned().collect()
    }

    /// Buffers in all lanes.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().iter().flatten().map(|lane| lane.len()).sum()
    }

    pub(crate) fn has_marks(&self) -> bool {
        !self.marked.borrow().is_empty()
    }

    #[inline]
    pub(crate) fn take_marked(&self) -> Option<Rc<LaneShared>> {
        self.marked.borrow_mut().pop()
    }

    /// The ring had no room for a lane.
    pub(crate) fn stall(&self, lane: &Rc<LaneShared>) {
        self.stalled.borrow_mut().push(Rc::clone(lane));
    }

    /// Wakers of all lanes.
    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for lane in self.all() {
            let mut state = lane.state.borrow_mut();
            wakers.append(&mut state.for_back.take());
            wakers.append(&mut state.for_room.take());
        }
        wakers
    }

    /// Leaks what open requests may still read; returns how many buffers that is. Streams have so much `time` to get
    /// through.
    pub(crate) fn abandon(&self, time: Duration) -> usize {
        let abandon = |lane: &Rc<LaneShared>| {
            if let Some(socket) = lane.socket_if_needed() {
                socket.leave_to_the_kernel(time);
            }
            lane.state.borrow_mut().abandon()
        };
        self.all().iter().map(abandon).sum()
    }
}
