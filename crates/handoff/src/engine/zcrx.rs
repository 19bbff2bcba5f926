//! Receive from an rx queue: `IORING_OP_RECV_ZC`, one request, a completion for each span.
//!
//! Minimum kernel, capability and set-up: see [`RxQueue`](crate::RxQueue). Return signal: none to wait
//! for; dropping a span gives it back.
//!
//! Contracts:
//! - a request that ended for lack of room or of chunks starts again when there may be some; it gives up
//!   with a reason only when nothing could ever come back;
//! - with a pool beside the queue, the receive leaves the queue when the kernel copies, since that costs
//!   more than plain receive. It returns to the queue for good when plain receive finds bytes that only the
//!   NIC's memory has.

use io_uring::{cqueue, opcode, squeue};

use crate::core::Core;
use crate::error::Error;
use crate::mechanism::ReceiveEngine;
use crate::op::{Flow, ReceiveOp, ReceiveState, ReceivesFrom};
use crate::ring::endpoint::with_target;
use crate::ring::token::Stage;
use crate::ring::{Completion, Key, RawSpan, Token};

/// Tries of a receive that finds no chunk while none is held, a millisecond apart.
const MAX_TRIES: u32 = 1_000;

fn flow(op: &mut ReceiveOp) -> &mut Flow {
    op.flow.as_mut().expect("what receives from a queue has one")
}

pub(super) fn request(core: &Core, op: &mut ReceiveOp) -> squeue::Entry {
    let flow = flow(op);
    if std::mem::take(&mut flow.starved) {
        flow.queue.replenish(core.io.ring_raw(), flow.queue.chunks());
    }
    flow.chunks = flow.queue.chunks();
    let id = flow.queue.id();
    // 0 is no limit.
    let left = flow.left_to_receive().unwrap_or(0);
    with_target!(op.socket.endpoint, |fd| opcode::RecvZc::new(fd, left).ifq(id).build())
}

/// Takes a completion; returns whether the receive must start again, if it ended.
pub(super) fn completed(
    core: &Core,
    key: Key,
    op: &mut ReceiveOp,
    completion: &Completion,
) -> bool {
    let Completion { result, flags, .. } = *completion;
    if cqueue::more(flags) {
        // A span of no bytes: the kernel reports none.
        return false;
    }
    op.state = ReceiveState::Idle;
    let has_pool = op.pool.is_some();
    let flow = flow(op);
    match -result {
        0 => op.end(Ok(())),
        // It was to leave the queue; the request may have ended by itself.
        libc::ECANCELED | libc::ENOSPC | libc::EINTR | libc::EAGAIN | libc::ENOMEM
            if flow.left.is_some() =>
        {
            op.from = ReceivesFrom::Pool;
            return true;
        }
        // The last wanted bytes came, and the completion queue had no room for the end.
        _ if flow.left_to_receive() == Some(0) => op.end(Ok(())),
        // The completion queue was full, for the first time.
        libc::ENOSPC | libc::EINTR => return true,
        libc::EAGAIN => {
            op.state = ReceiveState::Blocked;
            return true;
        }
        libc::ENOMEM => return wait_for_chunk(core, key, op),
        libc::EPROTONOSUPPORT => {
            let reason = "the kernel receives so on TCP sockets only, and not where it does TLS";
            if has_pool {
                flow.left = Some(reason.to_owned());
                op.from = ReceivesFrom::Pool;
                return true;
            }
            let error = unavailable(op, reason);
            op.end(Err(error));
        }
        libc::EFAULT => {
            let reason = "the connection's bytes are in the memory of another rx queue: steer it to \
                          one queue before it is made";
            let error = unavailable(op, reason);
            op.end(Err(error));
        }
        errno => op.end(Err(Error::errno("receiving from an rx queue", errno))),
    }
    false
}

/// Takes the reported spans.
pub(super) fn arrived(core: &Core, key: Key, op: &mut ReceiveOp, told: &[RawSpan]) {
    let (spans, bytes) = op.arrivals.push_told(told);
    let has_pool = op.pool.is_some();
    let flow = flow(op);
    flow.queue.arrived(spans, bytes, core.io.ring_raw());
    flow.bytes += bytes;
    flow.dry = 0;
    if has_pool {
        weigh(core, key, flow);
    }
    if spans < told.len() {
        let reason = "the kernel tells of bytes outside of the area";
        let error = unavailable(op, reason);
        op.end(Err(error));
    }
}

/// Leaves the queue, for a pool, if the kernel copies what comes from it.
fn weigh(core: &Core, key: Key, flow: &mut Flow) {
    if flow.left.is_none()
        && let Some((copied, received)) = flow.weigh()
    {
        flow.left = Some(format!(
            "the kernel copied {copied} of {received} bytes of the rx queue: their packets come by \
             another queue, or unsplit"
        ));
        tracing::info!(reason = flow.left, "plain receive instead of the rx queue");
        // Only a ring receives this way.
        let _ = core.cancel(Token { key, stage: Stage::Receive });
    }
}

/// The kernel found no chunk to copy to. Chunks that we hold will come back; chunks in the kernel's hands
/// may.
fn wait_for_chunk(core: &Core, key: Key, op: &mut ReceiveOp) -> bool {
    let held = !op.holder.is_gone();
    let flow = flow(op);
    if flow.engine() == ReceiveEngine::ZcrxDmabuf {
        let reason = "bytes of the connection came another way than the rx queue, or unsplit, and the kernel \
                      cannot copy them into a dma-buf: steer the port to the queue before anybody connects";
        let error = unavailable(op, reason);
        op.end(Err(error));
        return false;
    }
    // Before the look at the refill queue, where their chunks go.
    let others_hold = flow.queue.others_hold_any();
    if flow.queue.replenish(core.io.ring_raw(), flow.chunks) {
        return true;
    }
    if !held {
        return false;
    }
    let any_held = flow.queue.holds_any() || others_hold;
    if flow.queue.holds_any() && !flow.queue.is_shared() {
        flow.starved = true;
        flow.queue.starve(key);
    } else if any_held || flow.dry < MAX_TRIES {
        // Another ring gives chunks back without telling us, and may have more to give than it holds now.
        flow.dry += u32::from(!any_held);
        op.state = ReceiveState::Resting;
        core.tell_later(Token { key, stage: Stage::Ready });
    } else {
        let reason = format!(
            "all {} chunks of the area are in the NIC's ring or in sockets' queues: make it larger",
            flow.queue.chunks()
        );
        let error = unavailable(op, &reason);
        op.end(Err(error));
    }
    false
}

fn unavailable(op: &mut ReceiveOp, reason: &str) -> Error {
    Error::EngineUnavailable { engine: flow(op).engine().name(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use super::*;
    use crate::engine::receiving;
    use crate::lease::rx_shared::RxShared;
    use crate::lease::{Arrivals, Intake, SpanRef};
    use crate::op::chooser::Chooser;
    use crate::op::{Op, SocketShared};
    use crate::ring::{Epoll, Io};

    const PAGE: usize = 4096;
    const CHUNKS: usize = 64;

    /// A queue without a kernel, and a receive from it.
    fn testbed() -> (Core, Rc<RxShared>, impl Fn() -> Vec<u64>, ReceiveOp) {
        let io = Io::of_epoll(Epoll::new().unwrap(), String::new());
        let core = Core::new(io, 16).unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let chooser = Chooser::new(Err(String::new()), true);
        let socket = Rc::new(SocketShared::new(&core.io, near.into(), chooser).unwrap());
        let (queue, given_back) = RxShared::without_kernel(&core.pending, CHUNKS, PAGE);
        let mut op = ReceiveOp::new(socket, Intake::of_queue(&queue));
        op.state = ReceiveState::Receiving;
        (core, queue, given_back, op)
    }

    fn ended(errno: i32) -> Completion {
        Completion { data: 0, result: -errno, flags: 0, spans: 0..0 }
    }

    /// Stands in for the kernel: its completions and its refill queue.
    #[test]
    fn spans_come_as_told_and_go_back_as_they_came() {
        let (core, queue, given_back, op) = testbed();
        let key = core.records.borrow_mut().insert(|| Op::Receive(op));

        let tell = |places: &[RawSpan]| {
            let run = 0..places.len() as u32;
            let completion = Completion { data: 0, result: 1, flags: 1 << 1, spans: run };
            receiving::completed(&core, key, &completion, places);
        };
        let mut taken = Arrivals::new(Some(Rc::clone(&queue)));
        for round in 0..100 {
            let told = |chunk| {
                let begin = (chunk * PAGE + round) as u64;
                RawSpan { begin, len: (1 + chunk * 60 % 3_900) as u32 }
            };
            tell(&(0..CHUNKS).map(told).collect::<Vec<_>>());
            assert!(receiving::take(&core, key, &mut taken));
            assert_eq!(taken.len(), CHUNKS);
            let mut chunk = 0;
            let mut expect = |len: usize| {
                assert_eq!(len, 1 + chunk * 60 % 3_900);
                chunk += 1;
            };
            match round % 2 {
                0 => taken.by_ref().for_each(|span| expect(span.len())),
                _ => taken.visit(&mut |span: SpanRef<'_>| expect(span.len())),
            }
            assert_eq!(chunk, CHUNKS);
            assert!(!receiving::take(&core, key, &mut taken));
            assert!(receiving::end(&core, key).is_none());
            queue.publish(-1);
            let expected: Vec<_> = (0..CHUNKS).map(|chunk| (chunk * PAGE + round) as u64).collect();
            assert_eq!(given_back(), expected);
        }
        // Spans taken over and not handed out go back with the receiver, before the spans that it had not
        // taken over.
        let place = |chunk: usize| RawSpan { begin: (chunk * PAGE) as u64, len: 1 };
        let spans: Vec<_> = (0..CHUNKS).map(place).collect();
        let (now, later) = spans.split_at(CHUNKS / 2);
        tell(now);
        assert!(receiving::take(&core, key, &mut taken));
        drop(taken.next());
        // The last is not in the area.
        let beyond = place(CHUNKS);
        tell(&later.iter().copied().chain([beyond]).collect::<Vec<_>>());
        assert!(receiving::end(&core, key).unwrap().is_err());
        assert!(receiving::end(&core, key).unwrap().is_ok());
        // The last completion.
        receiving::completed(&core, key, &ended(0), &[]);
        receiving::let_go(&core, key, &mut taken);
        queue.publish(-1);
        assert_eq!(given_back(), spans.iter().map(|place| place.begin).collect::<Vec<_>>());
        assert_eq!(core.records.borrow().len(), 0);
    }

    /// The area may have grown between the kernel's look for a chunk and its report.
    #[test]
    fn a_receive_that_found_no_chunk_begins_again_if_there_are_more_by_now() {
        for (chunks_before, begins_again) in [(CHUNKS - 1, true), (CHUNKS, false)] {
            let (core, queue, _, mut op) = testbed();
            flow(&mut op).chunks = chunks_before;
            let key = core.records.borrow_mut().insert(|| Op::Receive(op));
            // All are held.
            queue.arrived(CHUNKS, 0, -1);
            receiving::completed(&core, key, &ended(libc::ENOMEM), &[]);
            assert_eq!(core.pending.has_marks(), begins_again);
        }
    }

    /// Only the clock has it then, so there is nothing to ask the kernel for; its record stays until the time is over.
    #[test]
    fn a_receive_that_looks_again_in_a_moment_may_be_dropped() {
        let (core, queue, _, mut op) = testbed();
        flow(&mut op).chunks = CHUNKS;
        let key = core.records.borrow_mut().insert(|| Op::Receive(op));
        receiving::completed(&core, key, &ended(libc::ENOMEM), &[]);
        assert_eq!(core.records.borrow_mut().receive(key).stage(), None);
        receiving::let_go(&core, key, &mut Arrivals::new(Some(queue)));
        assert_eq!(core.records.borrow().len(), 1);
        receiving::ready(&core, key);
        assert_eq!(core.records.borrow().len(), 0);
    }

    /// The request may end by itself before the kernel looks for it.
    #[test]
    fn a_receive_that_is_to_leave_its_queue_leaves_it_whatever_ends_its_request() {
        for errno in [libc::ECANCELED, libc::ENOSPC, libc::EINTR, libc::EAGAIN, libc::ENOMEM] {
            let (core, _queue, _, mut op) = testbed();
            flow(&mut op).left = Some("the kernel copies".to_owned());
            let key = core.records.borrow_mut().insert(|| Op::Receive(op));
            receiving::completed(&core, key, &ended(errno), &[]);
            assert!(core.pending.has_marks(), "{errno}");
            assert_eq!(core.records.borrow_mut().receive(key).from, ReceivesFrom::Pool, "{errno}");
        }
    }

    /// Two rings share a queue. One finds no chunk while the other holds none, since the other's holder
    /// keeps what it has. Then the other receives what was in its sockets, and gives all of it back.
    #[test]
    fn who_found_no_chunk_looks_again_when_another_ring_may_give_back() {
        let (core, queue, given_back, op) = testbed();
        let others_due = Rc::<crate::lease::Pending>::default();
        let imported = queue.imported(&others_due);
        let key = core.records.borrow_mut().insert(|| Op::Receive(op));
        let place = |chunk: usize| RawSpan { begin: (chunk * PAGE) as u64, len: 9 };

        let told = Completion { data: 0, result: 1, flags: 1 << 1, spans: 0..1 };
        receiving::completed(&core, key, &told, &[place(0)]);
        let mut taken = Arrivals::new(Some(Rc::clone(&queue)));
        assert!(receiving::take(&core, key, &mut taken));
        let kept = taken.next().unwrap();

        receiving::completed(&core, key, &ended(libc::ENOMEM), &[]);

        let mut theirs = Arrivals::new(Some(Rc::clone(&imported)));
        let all: Vec<_> = (1..CHUNKS).map(place).collect();
        let (spans, bytes) = theirs.push_told(&all);
        imported.arrived(spans, bytes, -1);
        drop(theirs.collect::<Vec<_>>());
        imported.publish(-1);
        assert_eq!(given_back().len(), CHUNKS - 1);

        assert!(
            !core.deadlines.is_empty() || core.pending.has_marks(),
            "{} chunks came back, and nobody starts the receive again",
            CHUNKS - 1
        );
        drop(kept);
    }
}
