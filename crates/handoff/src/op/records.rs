//! Records of operations: who owns what the kernel still uses.
//!
//! Contracts:
//! - a record stays at one address and owns buffer, file and address of its operation until the kernel's
//!   last completion for it; only then is it used again;
//! - a key names one use of a record. Completions of an earlier use are ignored: kernels post unannounced
//!   notifications (for linked requests that were stopped before they began);
//! - a record also stays until its handles are gone. So a forgotten handle keeps its buffer (and its place)
//!   until the driver goes, and never frees it early;
//! - the number of records is limited by the driver's builder; waits, which lend nothing, and sends that nobody waits
//!   for have theirs besides.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::accept::{AcceptOp, AcceptState};
use super::file_call::FileCallOp;
use super::get::GetOp;
use super::layout::Layout;
use super::lender::Lender;
use super::loan::Loan;
use super::raw::RawOp;
use super::receive::{ReceiveOp, ReceiveState};
use super::send::SendOp;
use super::socket_state::SocketShared;
use super::transfer::{TransferOp, TransferState};
use crate::error::{Error, Result};
use crate::ring::token::GENERATIONS;
use crate::ring::{Key, Token};

/// One operation.
#[allow(
    clippy::large_enum_variant,
    reason = "a record is used again for any kind, and most are sends"
)]
pub(crate) enum Op {
    /// The record is free.
    Vacant,
    /// A send to a socket.
    Send(SendOp),
    /// A read or write of a file.
    Transfer(TransferOp),
    /// A multishot receive.
    Receive(ReceiveOp),
    /// A listener.
    Accept(AcceptOp),
    /// A lend of a buffer of the kernel.
    #[cfg_attr(
        not(feature = "getbuf"),
        allow(dead_code, reason = "what only handles use, which are not there")
    )]
    Get(GetOp),
    /// A request that the program made.
    Raw(RawOp),
    /// A call about a file or a name.
    FileCall(FileCallOp),
}

/// The kind of an operation, for whoever reports an event to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Transfer,
    Receive,
    Accept,
    Get,
    Raw,
    FileCall,
}

/// In this order, so that fields needed at every event lie together.
#[repr(C)]
struct Record {
    /// Finished uses, as far as a key counts them.
    uses: u32,
    op: Op,
    layout: Layout,
}

/// All records of a driver.
pub(crate) struct Records {
    #[allow(clippy::vec_box, reason = "the kernel is given addresses within a record")]
    records: Vec<Box<Record>>,
    free: Vec<u32>,
    limit: usize,
    /// Records of waits.
    waits: usize,
    /// A record of which the kernel held something at the last check.
    last_held: Cell<usize>,
}

impl Records {
    pub(crate) fn new(limit: usize) -> Self {
        Self { records: Vec::new(), free: Vec::new(), limit, waits: 0, last_held: Cell::new(0) }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns whether [`insert`](Self::insert) has room for anything but a wait, beside so many sends that count
    /// elsewhere.
    pub(crate) fn check_room(&self, unclaimed: usize) -> Result<()> {
        if self.len() - self.waits - unclaimed >= self.limit {
            return Err(Error::Busy { limit: self.limit });
        }
        Ok(())
    }

    /// Takes a record for the operation that `op` makes; the caller has checked that there is room.
    pub(crate) fn insert(&mut self, op: impl FnOnce() -> Op) -> Key {
        let (key, record) = self.put(op);
        let waits = record.op.waits();
        self.waits += usize::from(waits);
        key
    }

    /// As [`insert`](Self::insert) for a send.
    #[inline(always)]
    pub(crate) fn insert_send(
        &mut self,
        op: impl FnOnce() -> SendOp,
    ) -> (Key, &mut SendOp, &mut Layout) {
        let (key, record) = self.put(|| Op::Send(op()));
        match &mut record.op {
            Op::Send(op) => (key, op, &mut record.layout),
            _ => unreachable!("a send was put there"),
        }
    }

    #[inline(always)]
    fn put(&mut self, op: impl FnOnce() -> Op) -> (Key, &mut Record) {
        let index = self.free.pop().unwrap_or_else(|| self.add());
        let record = &mut *self.records[index as usize];
        debug_assert!(matches!(record.op, Op::Vacant), "a free record is vacant");
        // SAFETY: a vacant record needs no drop. Written this way, the operation is made in place: copying
        // it would cost more than the rest of this.
        unsafe { std::ptr::write(&raw mut record.op, op()) };
        (Key { index, generation: record.uses }, record)
    }

    #[cold]
    fn add(&mut self) -> u32 {
        let record = Record { uses: 0, op: Op::Vacant, layout: Layout::default() };
        self.records.push(Box::new(record));
        (self.records.len() - 1) as u32
    }

    /// Frees a record. The caller keeps whatever may come back to the driver when dropped, until the borrow
    /// of the records ends.
    #[inline]
    pub(crate) fn vacate(&mut self, key: Key) {
        let record = &mut *self.records[key.index as usize];
        debug_assert!(!matches!(record.op, Op::Vacant), "a record is freed once");
        self.waits -= usize::from(record.op.waits());
        record.op = Op::Vacant;
        self.recycle(key);
    }

    /// Nothing of the last use of a record is left.
    fn recycle(&mut self, key: Key) {
        let record = &mut *self.records[key.index as usize];
        record.uses = (record.uses + 1) % GENERATIONS;
        self.free.push(key.index);
    }

    /// As [`vacate`](Self::vacate), for a send that has given its buffer away and has no handles; returns
    /// its socket, if it has it, and its lender.
    #[inline(always)]
    pub(crate) fn vacate_send(&mut self, key: Key) -> (Option<Rc<SocketShared>>, Rc<Lender>) {
        let record = &mut *self.records[key.index as usize];
        let Op::Send(op) = &mut record.op else { unreachable!("the key of a send names a send") };
        // Overwritten without a drop: the compiler does not know how little it owns.
        let socket = op.strip();
        // SAFETY: the lender is moved out and nobody else drops it, since what is written over is not dropped.
        let lender = unsafe {
            let lender = std::ptr::read(&raw const op.lent.lender);
            std::ptr::write(&raw mut record.op, Op::Vacant);
            lender
        };
        self.recycle(key);
        (socket, lender)
    }

    fn get(&mut self, key: Key) -> &mut Op {
        let record = &mut *self.records[key.index as usize];
        debug_assert_eq!(key.generation, record.uses, "a key is stale");
        &mut record.op
    }

    /// As [`get`](Self::get), for a request. Checked in every build: the kernel gets nothing of an operation that
    /// uses the record by now.
    #[inline]
    fn get_with_layout(&mut self, key: Key) -> (&mut Op, &mut Layout) {
        let record = &mut *self.records[key.index as usize];
        assert!(key.generation == record.uses, "a key is stale");
        (&mut record.op, &mut record.layout)
    }

    /// All sends.
    pub(crate) fn sends(&mut self) -> impl Iterator<Item = &mut SendOp> {
        self.records.iter_mut().filter_map(|record| match &mut record.op {
            Op::Send(op) => Some(op),
            _ => None,
        })
    }

    /// The operation of a key, or `None` when that use of the record is over.
    pub(crate) fn kind(&self, key: Key) -> Option<Kind> {
        let record = self.records.get(key.index as usize)?;
        if record.uses != key.generation {
            return None;
        }
        match record.op {
            Op::Send(_) => Some(Kind::Send),
            Op::Transfer(_) => Some(Kind::Transfer),
            Op::Receive(_) => Some(Kind::Receive),
            Op::Accept(_) => Some(Kind::Accept),
            Op::Get(_) => Some(Kind::Get),
            Op::Raw(_) => Some(Kind::Raw),
            Op::FileCall(_) => Some(Kind::FileCall),
            Op::Vacant => None,
        }
    }

    pub(crate) fn send(&mut self, key: Key) -> &mut SendOp {
        match self.get(key) {
            Op::Send(op) => op,
            _ => unreachable!("the key of a send names a send"),
        }
    }

    /// The send of a key, or `None` when that use of the record is over.
    #[inline]
    pub(crate) fn send_if_current(&mut self, key: Key) -> Option<&mut SendOp> {
        let record = self.records.get_mut(key.index as usize)?;
        match &mut record.op {
            Op::Send(op) if record.uses == key.generation => Some(op),
            _ => None,
        }
    }

    pub(crate) fn send_and_layout(&mut self, key: Key) -> (&mut SendOp, &mut Layout) {
        match self.get_with_layout(key) {
            (Op::Send(op), layout) => (op, layout),
            _ => unreachable!("the key of a send names a send"),
        }
    }

    pub(crate) fn transfer(&mut self, key: Key) -> &mut TransferOp {
        match self.get(key) {
            Op::Transfer(op) => op,
            _ => unreachable!("the key of a transfer names a transfer"),
        }
    }

    pub(crate) fn transfer_and_layout(&mut self, key: Key) -> (&mut TransferOp, &mut Layout) {
        match self.get_with_layout(key) {
            (Op::Transfer(op), layout) => (op, layout),
            _ => unreachable!("the key of a transfer names a transfer"),
        }
    }

    pub(crate) fn receive(&mut self, key: Key) -> &mut ReceiveOp {
        match self.get(key) {
            Op::Receive(op) => op,
            _ => unreachable!("the key of a receive names a receive"),
        }
    }

    pub(crate) fn accept(&mut self, key: Key) -> &mut AcceptOp {
        match self.get(key) {
            Op::Accept(op) => op,
            _ => unreachable!("the key of a listener names a listener"),
        }
    }

    pub(crate) fn get_op(&mut self, key: Key) -> &mut GetOp {
        match self.get(key) {
            Op::Get(op) => op,
            _ => unreachable!("the key of a lend names a lend"),
        }
    }

    pub(crate) fn raw(&mut self, key: Key) -> &mut RawOp {
        match self.get(key) {
            Op::Raw(op) => op,
            _ => unreachable!("the key of a raw request names one"),
        }
    }

    /// Checked in every build, as for all that makes requests.
    pub(crate) fn file_call(&mut self, key: Key) -> &mut FileCallOp {
        match self.get_with_layout(key).0 {
            Op::FileCall(op) => op,
            _ => unreachable!("the key of a call about a file names one"),
        }
    }

    /// Records in use.
    pub(crate) fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Calls with each loan, and the descriptor of the operation that has it, if that is still open.
    pub(crate) fn each_loan(&self, mut tell: impl FnMut(Option<RawFd>, &Loan)) {
        for record in &self.records {
            match &record.op {
                Op::Send(op) => {
                    let fd = op.socket_if_needed().map(|socket| socket.endpoint.raw());
                    op.lent.loan.iter().for_each(|loan| tell(fd, loan));
                }
                Op::Transfer(op) => op.loan.iter().for_each(|loan| tell(Some(op.file.raw()), loan)),
                Op::Receive(_)
                | Op::Get(_)
                | Op::Accept(_)
                | Op::Raw(_)
                | Op::FileCall(_)
                | Op::Vacant => {}
            }
        }
    }

    /// Whether the kernel may still use anything of a record. Each turn that waits asks this, so the search
    /// begins where it last found one: operations end roughly in the order of their records.
    pub(crate) fn kernel_holds_any(&self) -> bool {
        let (before, from) = self.records.split_at(self.last_held.get().min(self.records.len()));
        let held = |records: &[Box<Record>]| records.iter().position(|it| it.op.kernel_holds());
        let place = held(from).map(|place| before.len() + place).or_else(|| held(before));
        self.last_held.set(place.unwrap_or(0));
        place.is_some()
    }

    /// Streams that nobody holds, with a send that ended midway and bytes that the kernel has.
    pub(crate) fn cut_streams(&self) -> Vec<Rc<SocketShared>> {
        let cut = |op: &Op| match op {
            Op::Send(op) if op.kernel_holds() => {
                op.socket_if_needed().filter(|socket| socket.is_cut()).map(Rc::clone)
            }
            _ => None,
        };
        self.records.iter().filter_map(|record| cut(&record.op)).collect()
    }

    /// Nobody can turn the driver any more: nothing starts again, and holders are told. Returns all keys.
    pub(crate) fn end_all(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        for (index, record) in self.records.iter_mut().enumerate() {
            match &mut record.op {
                Op::Send(op) => drop(op.ask_to_end()),
                Op::Transfer(op) => op.make_last(),
                Op::Receive(op) => op.end_without_driver(),
                Op::FileCall(op) => op.make_last(),
                Op::Accept(_) | Op::Get(_) | Op::Raw(_) => {}
                Op::Vacant => continue,
            }
            keys.push(Key { index: index as u32, generation: record.uses });
        }
        keys
    }

    /// Wakers of all records.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for record in &mut self.records {
            match &mut record.op {
                Op::Send(op) => {
                    wakers.extend(op.take_wakers());
                    if let Some(socket) = op.socket_if_needed() {
                        wakers.extend(socket.queue.borrow().flushing.take());
                    }
                }
                Op::Transfer(op) => {
                    wakers.extend(op.holder.take_waker());
                    wakers.extend(op.take_behind());
                }
                Op::Receive(op) => wakers.extend(op.holder.take_waker()),
                Op::Accept(op) => wakers.extend(op.holder.take_waker()),
                Op::Get(op) => wakers.extend(op.holder.take_waker()),
                Op::Raw(op) => wakers.extend(op.holder.take_waker()),
                Op::FileCall(op) => wakers.extend(op.holder.take_waker()),
                Op::Vacant => {}
            }
        }
        wakers
    }

    /// A wait for a descriptor ends with the driver; the kernel held nothing for it.
    pub(crate) fn end_wait(&mut self, token: Token) {
        match self.get(token.key) {
            Op::Send(op) => op.in_kernel -= 1,
            Op::Receive(op) => op.state = ReceiveState::Idle,
            Op::Transfer(op) => op.state = TransferState::Idle,
            Op::Accept(op) => op.state = AcceptState::Idle,
            Op::Get(_) | Op::Raw(_) | Op::FileCall(_) | Op::Vacant => {
                unreachable!("what waits for readiness keeps its record")
            }
        }
    }

    /// Leaks what the kernel may still write to, or read from memory that would be reused, with the record
    /// that it may point into; returns the number of such operations. The rest goes with the driver. Streams have so much
    /// `time` to get through.
    pub(crate) fn abandon(&mut self, time: Duration) -> usize {
        for record in &self.records {
            if let Op::Send(op) = &record.op
                && let Some(loan) = &op.lent.loan
                && op.kernel_holds()
            {
                loan.keep_from_nic();
                if let Some(socket) = op.socket_if_needed() {
                    socket.leave_to_the_kernel(time);
                }
            }
        }
        let (held, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.records)
            .into_iter()
            .partition(|record| record.op.kernel_holds() && !record.op.may_drop_while_held());
        self.records = rest;
        let held = held.into_iter().map(Box::leak);
        held.map(|record| {
            if let Op::Send(op) = &mut record.op {
                op.close_abandoned();
            }
        })
        .count()
    }
}

impl Op {
    /// Whether it only waits for readiness.
    fn waits(&self) -> bool {
        matches!(self, Self::Transfer(op) if op.direction.waits())
    }

    fn kernel_holds(&self) -> bool {
        match self {
            Self::Vacant => false,
            Self::Send(op) => op.kernel_holds(),
            Self::Transfer(op) => op.kernel_holds(),
            Self::Receive(op) => op.kernel_holds(),
            Self::Accept(op) => op.kernel_holds(),
            Self::Get(op) => op.kernel_holds(),
            Self::Raw(op) => op.kernel_holds(),
            Self::FileCall(op) => op.kernel_holds(),
        }
    }

    fn may_drop_while_held(&self) -> bool {
        match self {
            // A lend is of the kernel's memory, and its command is all in the request; an accept names no
            // memory.
            Self::Vacant | Self::Accept(_) | Self::Get(_) => true,
            // Pages of a mapping outlive it; a request that never completed may still read the record
            // itself.
            Self::Send(op) => op.only_pages_held(),
            Self::FileCall(op) => op.names_no_memory(),
            // The kernel may still write into the buffer, or into a chunk of the pool, or who knows what it does.
            Self::Transfer(_) | Self::Receive(_) | Self::Raw(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{self, AssertUnwindSafe};

    use super::*;
    use crate::op::loan::AsLoan;
    use crate::op::{Attached, Direction};
    use crate::ring::{Endpoint, Epoll, Io};

    #[test]
    fn a_key_of_an_earlier_use_names_nothing() {
        let io = std::rc::Rc::new(Io::of_epoll(Epoll::new().unwrap(), String::new()));
        let file = Endpoint::attach(&io, std::fs::File::open("/dev/null").unwrap().into());
        let file = Attached::File(std::rc::Rc::new(file));
        let op = || {
            let loan = crate::Buffer::from(vec![0]).into_loan();
            Op::Transfer(TransferOp::new(file.clone(), false, Direction::Read, None, loan))
        };
        let mut inflight = Records::new(1);
        let first = inflight.insert(op);
        assert_eq!(inflight.kind(first), Some(Kind::Transfer));
        inflight.vacate(first);
        assert_eq!(inflight.kind(first), None);
        let second = inflight.insert(op);
        assert_eq!((inflight.kind(first), inflight.kind(second)), (None, Some(Kind::Transfer)));
        let misused = AssertUnwindSafe(|| {
            inflight.transfer_and_layout(first);
        });
        assert!(panic::catch_unwind(misused).is_err(), "it names another's record");
    }
}
