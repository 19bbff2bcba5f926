//! Bytes of a lane on a stream: one request at a time carries the waiting buffers, and the next continues
//! where the kernel stopped. So nothing overtakes a short send.
//!
//! A request takes at most half of the lane: while those buffers are on their way, you can fill the other
//! half.

use handoff_sys::sqe;
use io_uring::{cqueue, opcode, squeue};

use super::progress::{Blocked, Submitted, Sum, make_room, next_use};
use crate::engine::uring_zc;
use crate::error::Error;
use crate::op::lane::{Ended, LaneShared, Message, PIECES, Slot, Stage, State};
use crate::ring::endpoint::with_target;
use crate::ring::{Completion, MAX_REQUEST, Ring, Token};

impl State {
    /// Makes a request of the waiting buffers, unless one is under way.
    pub(super) fn submit_stream(&mut self, ring: &mut Ring, lane: &LaneShared) -> Submitted {
        let mut submitted = Submitted::default();
        let State { stream: Some(stream), slots, next, tail, backing, end, .. } = self else {
            return submitted;
        };
        if !stream.may_go_on() || *next == *tail || end.is_some() {
            return submitted;
        }
        if !make_room(ring) {
            submitted.stalled = true;
            return submitted;
        }
        // All buffers of one request lie in the same registered buffer, or in none.
        let keeps = lane.socket().keeps_to_slots.get() || !uring_zc::is_huge(backing);
        let mask = slots.len() - 1;
        let most = if stream.copies { 1 } else { (slots.len() / 2).clamp(1, PIECES) };
        let (mut pieces, mut bytes, mut offset, mut fixed) = (0, 0, stream.offset, None);
        let mut place = *next;
        while place != *tail && pieces < most && bytes < MAX_REQUEST {
            let piece = &slots[place as usize & mask].buffer.as_ref().expect("it waits").0;
            let len = (piece.len() - offset).min(MAX_REQUEST - bytes);
            place = place.wrapping_add(1);
            if len > 0 {
                let slot = piece.slot(ring.id);
                if pieces > 0 && slot != fixed {
                    break;
                }
                fixed = slot;
                // SAFETY: the offset is within the piece.
                let start = unsafe { piece.start().add(offset) };
                stream.message.pieces[pieces] =
                    libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len };
                pieces += 1;
                bytes += len;
            }
            offset = 0;
        }
        if pieces == 0 {
            // Only empty buffers.
            let mut sum = Sum::default();
            self.taken(0, &mut sum);
            self.settle_stream(lane);
            submitted.settled = Some(sum);
            return submitted;
        }
        stream.kept_from_slot = fixed.is_some() && !keeps;
        let named = fixed.filter(|_| keeps && (pieces == 1 || ring.vectored_registered));
        stream.fixed = named;
        let copies = stream.copies;
        let flight = stream.last;
        stream.last = flight.wrapping_add(1);
        stream.busy = true;
        let flight = stream.flight(flight);
        flight.data = next_use(flight.data);
        (flight.bytes, flight.stage, flight.copied) = (bytes, Stage::InKernel, false);
        let data = flight.data;
        let usage = if self.reports_usage { sqe::SEND_ZC_REPORT_USAGE } else { 0 };
        let entry = request(lane, &mut stream.message, pieces, named, usage, copies);
        // SAFETY: the places keep their buffers until all of their bytes are returned, and the message stays
        // where it is and as it is until the request completes.
        unsafe { ring.push(&entry.user_data(data)) };
        submitted.requests = 1;
        submitted
    }

    /// Tells the stream about a completion or a return signal.
    pub(super) fn tell_stream(
        &mut self,
        lane: &LaneShared,
        completion: &Completion,
        sum: &mut Sum,
        blocked: &mut Blocked,
    ) {
        let Completion { data, result, flags, .. } = *completion;
        let reports_usage = self.reports_usage;
        let Some(stream) = &mut self.stream else { return };
        let number = Token::from_user_data(data).place();
        let Some(flight) =
            stream.flights.get_mut(usize::from(number)).filter(|flight| flight.data == data)
        else {
            debug_assert!(cqueue::notif(flags), "the last completion of a request");
            return;
        };
        match (flight.stage, cqueue::notif(flags)) {
            (Stage::InKernel, false) => {
                flight.bytes = result.max(0) as usize;
                if cqueue::more(flags) {
                    flight.stage = Stage::Lent;
                    sum.lent += 1;
                } else {
                    // Without a return signal to come, nothing was lent: the bytes were copied.
                    (flight.stage, flight.copied) = (Stage::Back, true);
                    sum.ended += 1;
                    sum.tally.count(flight.bytes as u64, Some(true));
                }
                stream.busy = false;
                stream.copies = false;
                self.taken(result.max(0) as usize, sum);
                if result <= 0 {
                    self.stream_failed(lane, data, -result, blocked);
                }
            }
            (Stage::Lent, true) => {
                flight.copied = result as u32 & sqe::NOTIF_USAGE_ZC_COPIED != 0;
                flight.stage = Stage::Back;
                sum.tally.count(flight.bytes as u64, reports_usage.then_some(flight.copied));
                sum.notifications += 1;
                sum.returned += 1;
                sum.ended += 1;
            }
            _ => return,
        }
        self.settle_stream(lane);
    }

    /// The kernel took this many bytes more.
    fn taken(&mut self, mut bytes: usize, sum: &mut Sum) {
        let Some(stream) = &mut self.stream else { return };
        let mask = self.slots.len() - 1;
        while self.next != self.tail {
            let left = self.slots[self.next as usize & mask].len() - stream.offset;
            if bytes < left {
                stream.offset += bytes;
                return;
            }
            bytes -= left;
            stream.offset = 0;
            self.next = self.next.wrapping_add(1);
            sum.messages += 1;
        }
    }

    /// Returns the bytes of finished requests to their buffers.
    pub(super) fn settle_stream(&mut self, lane: &LaneShared) {
        let Some(stream) = &mut self.stream else { return };
        let mask = self.slots.len() - 1;
        loop {
            let over =
                stream.first != stream.last && stream.flight(stream.first).stage == Stage::Back;
            let flight = over.then(|| {
                let flight = stream.flight(stream.first);
                flight.stage = Stage::Free;
                (flight.bytes, flight.copied)
            });
            if over {
                stream.first = stream.first.wrapping_add(1);
            }
            let (mut bytes, copied) = flight.unwrap_or((0, false));
            while stream.settled != self.tail {
                let slot = &mut self.slots[stream.settled as usize & mask];
                let part = bytes.min(slot.len() - slot.sent);
                bytes -= part;
                slot.sent += part;
                slot.copied += if copied { part } else { 0 };
                slot.notifications += u32::from(part > 0);
                if slot.sent < slot.len() || stream.settled == self.next {
                    break;
                }
                slot.stage = Stage::Back;
                stream.settled = stream.settled.wrapping_add(1);
            }
            if !over {
                break;
            }
        }
        if self.end.is_some() && stream.first == stream.last {
            self.fail_rest(lane);
        }
    }

    /// What a failure means: the stream's end, or another try.
    #[cold]
    fn stream_failed(&mut self, lane: &LaneShared, data: u64, errno: i32, blocked: &mut Blocked) {
        let now = self.oldest_waiting().and_then(|slot| slot.buffer.as_ref()?.0.slot(self.ring));
        let may_copy = self.oldest_waiting().is_some_and(|it| lane.may_copy_instead(errno, it));
        let total = self.oldest_waiting().map_or(0, Slot::len);
        let Some(stream) = &mut self.stream else { return };
        match errno {
            _ if self.end.is_some() => {}
            // This kernel does not wait for room on a non-blocking socket.
            0 | libc::EAGAIN => {
                let token = Token::from_user_data(data);
                (stream.busy, stream.wait) = (true, Some(token));
                blocked.get_or_insert_default().push(token);
            }
            libc::EINTR | libc::ECANCELED => {}
            libc::EFAULT if stream.fixed.is_some() && stream.fixed != now => {}
            // Its pages are pinned already, in the slot.
            libc::ENOMEM | libc::ENOBUFS if stream.kept_from_slot => {
                lane.socket().keeps_to_slots.set(true);
            }
            _ if may_copy => stream.copies = true,
            _ => {
                stream.errno = errno;
                self.end = Some(Ended::Broken(stream.offset, total));
                lane.socket().queue.borrow_mut().break_off(stream.offset, total);
            }
        }
    }

    fn oldest_waiting(&self) -> Option<&Slot> {
        (self.next != self.tail).then(|| &self.slots[self.next as usize & (self.slots.len() - 1)])
    }

    /// The stream sends and lends nothing any more: buffers not sent whole come back with the reason.
    #[cold]
    fn fail_rest(&mut self, lane: &LaneShared) {
        let Some(stream) = &mut self.stream else { return };
        let mask = self.slots.len() - 1;
        let mut first = true;
        while stream.settled != self.tail {
            let slot = &mut self.slots[stream.settled as usize & mask];
            let error = match self.end {
                Some(Ended::Broken(..)) if first => {
                    lane.error(stream.errno, slot, stream.fixed.is_some())
                }
                Some(Ended::Broken(sent, total)) => Error::StreamBroken { sent, total },
                _ => Error::Canceled { done: slot.sent },
            };
            if first
                && slot.sent > 0
                && let Some(socket) = lane.socket_if_needed()
            {
                socket.queue.borrow_mut().break_off(slot.sent, slot.len());
            }
            slot.fail(error);
            first = false;
            stream.settled = stream.settled.wrapping_add(1);
        }
        (self.next, stream.offset) = (self.tail, 0);
    }
}

/// The request that carries the first pieces of a message.
fn request(
    lane: &LaneShared,
    message: &mut Message,
    pieces: usize,
    named: Option<u16>,
    usage: u16,
    copies: bool,
) -> squeue::Entry {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    let libc::iovec { iov_base, iov_len } = message.pieces[0];
    let (start, len) = (iov_base.cast::<u8>().cast_const(), iov_len as u32);
    with_target!(lane.socket().endpoint, |fd| match pieces {
        1 if copies => opcode::Send::new(fd, start, len).flags(flags).build(),
        1 => opcode::SendZc::new(fd, start, len)
            .buf_index(named)
            .flags(flags)
            .zc_flags(usage)
            .build(),
        _ => {
            message.header.msg_iov = message.pieces.as_mut_ptr();
            message.header.msg_iovlen = pieces;
            let named_flag = if named.is_some() { sqe::RECVSEND_FIXED_BUF } else { 0 };
            let mut entry = opcode::SendMsgZc::new(fd, &raw const message.header)
                .ioprio(usage | named_flag)
                .flags(flags as u32)
                .build();
            if let Some(index) = named {
                sqe::set_buf_index(&mut entry, index);
            }
            entry
        }
    })
}
