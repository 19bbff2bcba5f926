//! Datagrams of a lane: each has a request of its own, in any order, and returns by itself.

use std::ptr;

use handoff_sys::sqe;
use io_uring::{cqueue, opcode, squeue};

use super::progress::{Blocked, Submitted, Sum, make_room, next_use};
use crate::error::Error;
use crate::op::SocketShared;
use crate::op::lane::{LaneShared, Slot, Stage, State};
use crate::ring::endpoint::with_target;
use crate::ring::{Completion, MAX_REQUEST, Ring, Token};

/// Makes the request for the buffer of a place; from now on the kernel has the buffer.
#[inline(always)]
fn request(socket: &SocketShared, slot: &mut Slot, ring: u32) -> squeue::Entry {
    let piece = &slot.buffer.as_ref().expect("what waits has a buffer").0;
    slot.fixed = if slot.copies { None } else { piece.slot(ring) };
    slot.data = next_use(slot.data);
    slot.stage = Stage::InKernel;
    let mut entry = match slot.copies {
        true => with_target!(socket.endpoint, |fd| {
            opcode::Send::new(fd, ptr::null(), 0).flags(socket.message_flags()).build()
        }),
        false => socket.lending.clone(),
    };
    sqe::set_memory(&mut entry, piece.start().as_ptr(), piece.len().min(MAX_REQUEST) as u32);
    if let Some(index) = slot.fixed {
        sqe::set_fixed_buffer(&mut entry, index);
    }
    entry.set_user_data(slot.data);
    entry
}

impl State {
    /// Makes requests of buffers that wait, as long as the ring has room.
    pub(super) fn submit_datagrams(&mut self, ring: &mut Ring, lane: &LaneShared) -> Submitted {
        let mut submitted = Submitted::default();
        if !self.again.is_empty() {
            self.submit_again(ring, lane, &mut submitted);
        }
        let ring_id = ring.id;
        let socket = lane.socket();
        loop {
            // SAFETY: the place keeps the buffer, and with it its memory, until the request and its return
            // signal are over.
            unsafe {
                ring.push_all(|| {
                    let place = self.next;
                    if place == self.tail {
                        return None;
                    }
                    self.next = place.wrapping_add(1);
                    submitted.requests += 1;
                    Some(request(&socket, self.slot(place), ring_id))
                });
            }
            if self.next == self.tail {
                break;
            }
            if !make_room(ring) {
                submitted.stalled = true;
                break;
            }
        }
        submitted
    }

    #[cold]
    fn submit_again(&mut self, ring: &mut Ring, lane: &LaneShared, submitted: &mut Submitted) {
        while let Some(&place) = self.again.last() {
            if !make_room(ring) {
                submitted.stalled = true;
                return;
            }
            self.again.pop();
            let slot = &mut self.slots[usize::from(place)];
            let entry = request(&lane.socket(), slot, ring.id);
            // SAFETY: as in `submit_datagrams`.
            unsafe { ring.push(&entry) };
            submitted.requests += 1;
        }
    }

    /// Tells a place about a completion or its return signal.
    #[inline]
    pub(super) fn tell_datagram(
        &mut self,
        lane: &LaneShared,
        completion: &Completion,
        sum: &mut Sum,
        blocked: &mut Blocked,
    ) {
        let Completion { data, result, flags, .. } = *completion;
        let reports_usage = self.reports_usage;
        let place = Token::from_user_data(data).place();
        let Some(slot) = self.slots.get_mut(usize::from(place)).filter(|it| it.data == data) else {
            debug_assert!(cqueue::notif(flags), "the last completion of a place");
            return;
        };
        match (slot.stage, cqueue::notif(flags)) {
            (Stage::InKernel, false) if result >= 0 && cqueue::more(flags) => {
                slot.sent = result as usize;
                slot.stage = Stage::Lent;
                sum.lent += 1;
                sum.messages += 1;
            }
            (Stage::Lent, true) => {
                let copied = result as u32 & sqe::NOTIF_USAGE_ZC_COPIED != 0;
                slot.copied = if copied { slot.sent } else { 0 };
                slot.notifications = 1;
                slot.stage = Stage::Back;
                sum.notifications += 1;
                sum.returned += 1;
                sum.ended += 1;
                sum.tally.count(slot.sent as u64, reports_usage.then_some(copied));
            }
            (Stage::InKernel, false) => self.tell_unusual(lane, place, result, flags, sum, blocked),
            (Stage::Failing, true) => {
                slot.notifications = 1;
                sum.notifications += 1;
                sum.returned += 1;
                sum.ended += 1;
                self.failed(lane, place, blocked);
            }
            // A return signal that nothing announced.
            _ => {}
        }
    }

    /// A request that failed, or lent nothing.
    #[cold]
    fn tell_unusual(
        &mut self,
        lane: &LaneShared,
        place: u16,
        result: i32,
        flags: u32,
        sum: &mut Sum,
        blocked: &mut Blocked,
    ) {
        let slot = &mut self.slots[usize::from(place)];
        if result >= 0 {
            (slot.sent, slot.copied) = (result as usize, result as usize);
            slot.stage = Stage::Back;
            sum.messages += 1;
            sum.ended += 1;
            return sum.tally.count(result as u64, Some(true));
        }
        slot.errno = -result;
        if cqueue::more(flags) {
            slot.stage = Stage::Failing;
            sum.lent += 1;
            return;
        }
        sum.ended += 1;
        self.failed(lane, place, blocked);
    }

    /// What a failure means: an end, or another try.
    #[cold]
    fn failed(&mut self, lane: &LaneShared, place: u16, blocked: &mut Blocked) {
        let slot = &mut self.slots[usize::from(place)];
        let now = slot.buffer.as_ref().and_then(|buffer| buffer.0.slot(self.ring));
        let errno = slot.errno;
        let copies_next = !slot.copies && lane.may_copy_instead(errno, slot);
        let again = match errno {
            libc::EINTR | libc::ECANCELED | libc::EAGAIN => true,
            // The region left the ring's table after the request was made.
            libc::EFAULT => slot.fixed.is_some() && slot.fixed != now,
            _ => copies_next,
        };
        if !again {
            let error = lane.error(errno, slot, slot.fixed.is_some());
            return slot.fail(error);
        }
        if self.end.is_some() {
            return slot.fail(Error::Canceled { done: 0 });
        }
        slot.copies |= copies_next;
        if errno == libc::EAGAIN {
            // This kernel does not wait for room on a non-blocking socket.
            slot.stage = Stage::Blocked;
            let token = Token::from_user_data(slot.data);
            return blocked.get_or_insert_default().push(token);
        }
        slot.stage = Stage::Waiting;
        self.again.push(place);
    }
}
