//! Receive from an rx queue: `IORING_OP_RECV_ZC`, one request, a completion for each span.
//!
//! Minimum kernel, capability and set-up: see [`RxQueue`](crate::RxQueue). Return signal: none to wait
//! for; dropping a span gives it back.
//!
//! Contracts:
//! - a request that ended for want of room or of chunks starts again when there may be some, and gives
//!   up with a reason only when there is nothing that could ever come back;
//! - with a pool beside, the queue is left when the kernel copies, since that costs more than plain
//!   receive, and returned to for good when plain receive finds bytes that only the NIC's memory has.

use std::rc::Rc;

use io_uring::{cqueue, opcode, squeue};

use crate::driver::Inner;
use crate::endpoint::with_target;
use crate::engine::receiving::{ReceiveEngine, ReceiveOp, Way};
use crate::error::Error;
use crate::inflight::{Key, STAGE_READY, STAGE_RECEIVE, Token};
use crate::outcome::Tally;
use crate::ring::Completion;
use crate::source::rx_queue::RxShared;

/// How many bytes decide whether the kernel copies too much.
const WINDOW: u64 = 256 << 10;

/// How often a receive that finds no chunk, with none held, is tried again, a millisecond apart.
const PATIENCE: u32 = 1_000;

/// What a receive gets from its queue.
pub(crate) struct Flow {
    queue: Rc<RxShared>,
    bytes: u64,
    /// The kernel's count of copies, and of receives begun, when this one began; none was left then.
    copied_before: Option<u64>,
    begun: u64,
    alone: bool,
    /// Bytes, and the kernel's count of copies, when the window began.
    window: (u64, u64),
    /// Why the queue is left, or is to be.
    left: Option<String>,
    /// Plain receive can't have what comes.
    stays: bool,
    /// Waited for a chunk.
    starved: bool,
    /// Tries without a chunk, one after another.
    dry: u32,
}

impl Flow {
    pub(crate) fn open(queue: Rc<RxShared>) -> Self {
        let alone = queue.begin();
        let copied_before = queue.copied();
        Self {
            bytes: 0,
            copied_before,
            begun: queue.begun(),
            alone,
            window: (0, copied_before.unwrap_or(0)),
            left: None,
            stays: false,
            starved: false,
            dry: 0,
            queue,
        }
    }

    pub(crate) fn queue(&self) -> &Rc<RxShared> {
        &self.queue
    }

    pub(crate) fn engine(&self) -> ReceiveEngine {
        self.queue.engine()
    }

    pub(crate) fn reason(&self) -> String {
        match &self.left {
            Some(reason) => reason.clone(),
            None if self.stays => {
                "the NIC puts payload into the area of the queue, also what came \
                                   after the kernel had copied"
                    .to_owned()
            }
            None => "an rx queue was given, and the kernel does not say that it copies".to_owned(),
        }
    }

    /// Bytes by what the kernel's count says of them. The count is of all receives of the queue: what
    /// was copied while there were several is nobody's.
    pub(crate) fn tally(&self) -> Tally {
        let copied = self.queue.copied().zip(self.copied_before).map(|(now, then)| now - then);
        match copied {
            Some(0) => Tally { zero_copy: self.bytes, ..Tally::default() },
            Some(copied) if self.alone && self.queue.begun() == self.begun => {
                let copied = copied.min(self.bytes);
                Tally { zero_copy: self.bytes - copied, copied, ..Tally::default() }
            }
            _ => Tally { unknown: self.bytes, ..Tally::default() },
        }
    }

    /// Plain receive found bytes that it can't read; whether the queue can have them.
    pub(super) fn come_back(&mut self) -> bool {
        self.stays = true;
        self.left.take().is_some()
    }

    /// Whether most of what came lately was copied, if there was enough to tell.
    fn is_copied(&mut self) -> Option<(u64, u64)> {
        let (began, copied_then) = self.window;
        let received = self.bytes - began;
        if received < WINDOW || self.stays {
            return None;
        }
        let copied_now = self.queue.copied()?;
        self.window = (self.bytes, copied_now);
        let copied = copied_now - copied_then;
        (copied * 2 > received).then_some((copied, received))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.queue.end();
    }
}

fn flow(op: &mut ReceiveOp) -> &mut Flow {
    op.flow.as_mut().expect("what receives from a queue has one")
}

pub(super) fn request(inner: &Inner, op: &mut ReceiveOp) -> squeue::Entry {
    let flow = flow(op);
    if std::mem::take(&mut flow.starved) {
        flow.queue.replenish(inner);
    }
    let id = flow.queue.id();
    with_target!(op.socket.endpoint, |fd| opcode::RecvZc::new(fd, 0).ifq(id).build())
}

/// Takes a completion in; whether the receive is to start again, if it ended.
pub(super) fn completed(
    inner: &Inner,
    key: Key,
    op: &mut ReceiveOp,
    completion: &Completion,
) -> bool {
    let Completion { result, flags, .. } = *completion;
    if cqueue::more(flags) {
        // Nobody wants it any more; what is taken in here is dropped with the rest.
        arrived(inner, key, op, std::slice::from_ref(completion));
        return false;
    }
    op.armed = false;
    let has_pool = op.pool.is_some();
    let flow = flow(op);
    match -result {
        0 => op.ends(Ok(())),
        libc::ECANCELED if flow.left.is_some() => {
            op.way = Way::Pool;
            return true;
        }
        // The completion queue was full, for the first.
        libc::ENOSPC | libc::EINTR => return true,
        libc::EAGAIN => {
            op.blocked = true;
            return true;
        }
        libc::ENOMEM => return wait_for_chunk(inner, key, op),
        libc::EPROTONOSUPPORT => {
            let reason = "the kernel receives so on TCP sockets only, and not where it does TLS";
            if has_pool {
                flow.left = Some(reason.to_owned());
                op.way = Way::Pool;
                return true;
            }
            let error = unavailable(op, reason);
            op.ends(Err(error));
        }
        libc::EFAULT => {
            let reason = "the connection's bytes are in the memory of another rx queue: steer it to \
                          one queue before it is made";
            let error = unavailable(op, reason);
            op.ends(Err(error));
        }
        errno => op.ends(Err(Error::errno("receiving from an rx queue", errno))),
    }
    false
}

/// Takes in the spans that these completions begin with, of which the first is one; how many completions
/// that were.
pub(super) fn arrived(
    inner: &Inner,
    key: Key,
    op: &mut ReceiveOp,
    completions: &[Completion],
) -> usize {
    let (spans, bytes) = op.arrivals.push_told(completions);
    if spans == 0 {
        let reason = "the kernel tells of bytes outside of the area";
        let error = unavailable(op, reason);
        op.ends(Err(error));
        return 1;
    }
    let has_pool = op.pool.is_some();
    let flow = flow(op);
    flow.queue.arrived(spans, bytes);
    flow.bytes += bytes;
    flow.dry = 0;
    if has_pool {
        weigh(inner, key, flow);
    }
    spans
}

/// Leaves the queue, for a pool, if the kernel copies what comes from it.
fn weigh(inner: &Inner, key: Key, flow: &mut Flow) {
    if flow.left.is_none()
        && let Some((copied, received)) = flow.is_copied()
    {
        flow.left = Some(format!(
            "the kernel copied {copied} of {received} bytes of the rx queue: their packets come by \
             another queue, or unsplit"
        ));
        tracing::info!(reason = flow.left, "plain receive instead of the rx queue");
        inner.cancel(Token { key, stage: STAGE_RECEIVE });
    }
}

/// The kernel found no chunk to copy to. Those that we hold will come back; those in its own hands may.
fn wait_for_chunk(inner: &Inner, key: Key, op: &mut ReceiveOp) -> bool {
    let held = op.held;
    let flow = flow(op);
    if flow.queue.replenish(inner) {
        return true;
    }
    if !held {
        return false;
    }
    if flow.queue.holds_any() {
        flow.starved = true;
        flow.queue.starve(key);
    } else if flow.dry < PATIENCE {
        flow.dry += 1;
        op.armed = true;
        inner.tell_later(Token { key, stage: STAGE_READY });
    } else {
        let reason = format!(
            "all {} chunks of the area are in the NIC's ring or in sockets' queues: make it larger",
            flow.queue.chunks()
        );
        let error = unavailable(op, &reason);
        op.ends(Err(error));
    }
    false
}

fn unavailable(op: &mut ReceiveOp, reason: &str) -> Error {
    Error::EngineUnavailable { engine: flow(op).engine().name(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::driver::Driver;
    use crate::engine::receiving;
    use crate::inflight::Op;
    use crate::socket::Socket;
    use crate::source::arrivals::Arrivals;
    use crate::source::intake::Intake;

    /// `IORING_CQE_F_MORE`.
    const MORE: u32 = 1 << 1;
    const PAGE: usize = 4096;
    const CHUNKS: usize = 64;

    /// What the kernel would tell and be told, without one.
    #[test]
    fn spans_come_as_told_and_go_back_as_they_came() {
        let driver = Driver::builder().ring(crate::RingUse::Avoid).build().unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let socket = Socket::attach(Rc::clone(&driver.inner), near.into()).unwrap();
        let (queue, given_back) = RxShared::without_kernel(&driver.inner, CHUNKS, PAGE);
        let intake = Intake { queue: Some(Rc::clone(&queue)), window: None, pool: None };
        let op = ReceiveOp::new(Rc::clone(&socket.shared), intake);
        let key = driver.inner.inflight.borrow_mut().insert(|| Op::Receive(op));
        driver.inner.inflight.borrow_mut().receive(key).armed = true;

        let mut taken = Arrivals::new(Some(Rc::clone(&queue)));
        for round in 0..100 {
            let told = |chunk| {
                let place = (chunk * PAGE + round) as u64;
                let result = (1 + chunk * 60 % 3_900) as i32;
                Completion { data: 0, result, flags: MORE, place }
            };
            let told: Vec<_> = (0..CHUNKS).map(told).collect();
            assert_eq!(receiving::completed(&driver.inner, key, &told), CHUNKS);
            assert!(receiving::take(&driver.inner, key, &mut taken));
            assert_eq!(taken.len(), CHUNKS);
            for (chunk, span) in taken.by_ref().enumerate() {
                assert_eq!(span.len(), 1 + chunk * 60 % 3_900);
            }
            assert!(!receiving::take(&driver.inner, key, &mut taken));
            assert!(receiving::end(&driver.inner, key).is_none());
            queue.publish(&driver.inner);
            let expected: Vec<_> = (0..CHUNKS).map(|chunk| (chunk * PAGE + round) as u64).collect();
            assert_eq!(given_back(), expected);
        }
        // What is taken over and not handed out goes back with the receiver, before what is neither.
        let spans: Vec<_> = (0..CHUNKS as u64)
            .map(|chunk| Completion { data: 0, result: 1, flags: MORE, place: chunk * PAGE as u64 })
            .collect();
        let (now, later) = spans.split_at(CHUNKS / 2);
        receiving::completed(&driver.inner, key, now);
        assert!(receiving::take(&driver.inner, key, &mut taken));
        drop(taken.next());
        receiving::completed(&driver.inner, key, later);

        let beyond = (CHUNKS * PAGE) as u64;
        let told = Completion { data: 0, result: 1, flags: MORE, place: beyond };
        receiving::completed(&driver.inner, key, &[told]);
        assert!(receiving::end(&driver.inner, key).unwrap().is_err());
        assert!(receiving::end(&driver.inner, key).unwrap().is_ok());
        // The last completion.
        let ended = Completion { data: 0, result: 0, flags: 0, place: 0 };
        receiving::completed(&driver.inner, key, &[ended]);
        receiving::let_go(&driver.inner, key, &mut taken);
        queue.publish(&driver.inner);
        assert_eq!(given_back(), spans.iter().map(|span| span.place).collect::<Vec<_>>());
        assert_eq!(driver.in_flight(), 0);
    }
}
