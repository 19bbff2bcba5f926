//! Lending buffers of the kernel into the ring's table of registered buffers.
//!
//! Minimum kernel, capability and return signal: as [`source::kernel`](crate::source::kernel) says.
//!
//! Contracts:
//! - a slot is taken from the table before it is asked for, and free again when the kernel has said
//!   that it is clear; one that is about to be cleared is taken first, and the lend clears it;
//! - what the kernel lent to an operation that nobody waits for any more goes back at once;
//! - the device is open until it has cleared what it lent.

use std::rc::Rc;
use std::task::Waker;

use handoff_sys::getbuf::Command;
use io_uring::squeue;

use crate::driver::{Backend, Inner};
use crate::endpoint::{Endpoint, Target};
use crate::error::{Error, Result};
use crate::inflight::{DETACHED, Key, STAGE_GET, Token};
use crate::ring::slots::memlock_or;
use crate::source::kernel::{Binding, Bytes, Held, LenderShared};

/// A lend from the asking to its end or refusal.
pub(crate) struct GetOp {
    lender: Rc<LenderShared>,
    /// Keeps what is lent from bound; none for new pages.
    source: Option<Rc<Binding>>,
    command: Command,
    /// Bytes asked for.
    len: u32,
    slot: u16,
    fill: Option<u16>,
    in_kernel: bool,
    held: bool,
    result: Option<Result<Option<Bytes>>>,
    pub(crate) waker: Option<Waker>,
}

impl GetOp {
    pub(crate) fn of_source(
        source: &Rc<Binding>,
        inner: &Inner,
        offset: u64,
        len: u32,
    ) -> Result<Self> {
        if len == 0 {
            return Err(Error::Invalid("a lend has at least one byte"));
        }
        let (slot, command) = match take_marked(inner, &source.lender) {
            // The kernel clears it whatever becomes of the rest.
            Some(slot) => (slot, Command::get(slot, source.id, offset, len).anew(1)),
            None => {
                let slot = take_slot(inner)?;
                (slot, Command::get(slot, source.id, offset, len))
            }
        };
        let mut op = Self::new(&source.lender, command, len, slot, None);
        op.source = Some(Rc::clone(source));
        Ok(op)
    }

    pub(crate) fn fresh(lender: &Rc<LenderShared>, inner: &Inner, len: u32) -> Result<Self> {
        let slot = take_slot(inner)?;
        let fill = take_slot(inner).inspect_err(|_| inner.release_buffer(slot))?;
        Ok(Self::new(lender, Command::fresh(fill, slot, len), len, slot, Some(fill)))
    }

    fn new(
        lender: &Rc<LenderShared>,
        command: Command,
        len: u32,
        slot: u16,
        fill: Option<u16>,
    ) -> Self {
        Self {
            lender: Rc::clone(lender),
            source: None,
            command,
            len,
            slot,
            fill,
            in_kernel: false,
            held: true,
            result: None,
            waker: None,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.in_kernel
    }

    /// The driver goes: nobody waits for it.
    pub(crate) fn give_up(&mut self) {
        self.held = false;
    }

    fn release_slots(&self, inner: &Inner) {
        for slot in [Some(self.slot), self.fill].into_iter().flatten() {
            inner.release_buffer(slot);
        }
    }

    fn failure(&self, errno: i32) -> Error {
        match errno {
            libc::ENOMEM => {
                let error = std::io::Error::from_raw_os_error(errno);
                memlock_or("lending a buffer of the kernel", self.len.into(), error)
            }
            libc::ENOBUFS => Error::EngineUnavailable {
                engine: "get-buf",
                reason: "as much is lent as the module allows at once: drop leases, or raise its parameters"
                    .to_owned(),
            },
            libc::ETIME => Error::EngineUnavailable {
                engine: "get-buf",
                reason: "a buffer has been on loan for longer than the module allows: drop its leases"
                    .to_owned(),
            },
            libc::EOPNOTSUPP => Error::EngineUnavailable {
                engine: "get-buf",
                reason: "the module cannot lend this data where it is".to_owned(),
            },
            libc::ECANCELED => Error::Canceled { done: 0 },
            _ => Error::errno("lending a buffer of the kernel", errno),
        }
    }
}

fn take_slot(inner: &Inner) -> Result<u16> {
    inner.take_buffer().ok_or_else(|| Error::EngineUnavailable {
        engine: "get-buf",
        reason: "the ring's table of registered buffers is full: drop leases, or build the driver with more \
                 (DriverBuilder::registered_buffers)"
            .to_owned(),
    })
}

/// A slot that is about to be cleared by this device.
fn take_marked(inner: &Inner, lender: &Rc<LenderShared>) -> Option<u16> {
    inner.to_clear.borrow_mut().pop_if(|(its, _)| Rc::ptr_eq(its, lender)).map(|(_, slot)| slot)
}

fn entry(command: Command, device: &Endpoint) -> squeue::Entry {
    match device.target() {
        Target::Fixed(slot) => command.entry_fixed(slot),
        Target::Plain(fd) => command.entry(fd),
    }
}

/// Asks the kernel for the lend.
pub(crate) fn start(inner: &Inner, key: Key) {
    let token = Token { key, stage: STAGE_GET };
    let asked = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.get_op(key);
        let asked = push(inner, op.command, &op.lender.device, token.to_user_data());
        match asked {
            Ok(()) => op.in_kernel = true,
            Err(error) => {
                op.release_slots(inner);
                op.result = Some(Err(Error::io("asking for a lend", error)));
            }
        }
        op.in_kernel
    };
    inner.attend();
    if !asked {
        advance(inner, key);
    }
}

fn push(inner: &Inner, command: Command, device: &Endpoint, data: u64) -> std::io::Result<()> {
    let Backend::Ring(ring) = &inner.backend else { unreachable!("a lender has a ring") };
    let mut ring = ring.borrow_mut();
    ring.make_room(1)?;
    let entry = entry(command, device).user_data(data);
    // SAFETY: all of the command is in the entry.
    unsafe { ring.push(&entry) };
    Ok(())
}

/// The kernel has lent, or not.
pub(crate) fn completed(inner: &Inner, key: Key, result: i32) {
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.get_op(key);
        op.in_kernel = false;
        op.result = Some(if result > 0 {
            let held = Held::new(Rc::clone(&op.lender), op.slot, op.fill);
            Ok(Some(Bytes::new(held, result as u32)))
        } else {
            op.release_slots(inner);
            if result == 0 { Ok(None) } else { Err(op.failure(-result)) }
        });
    }
    advance(inner, key);
}

/// Hands the lease to its holder, once it is there.
pub(crate) fn take(inner: &Inner, key: Key) -> Option<Result<Option<Bytes>>> {
    let result = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.get_op(key);
        let result = op.result.take()?;
        op.held = false;
        // So that the record is over.
        op.result = Some(Ok(None));
        result
    };
    advance(inner, key);
    Some(result)
}

/// The driver goes: a wait for data ends.
pub(crate) fn end(inner: &Inner, key: Key) {
    let waits = inner.inflight.borrow_mut().get_op(key).in_kernel;
    if waits { cancel(inner, key) } else { advance(inner, key) }
}

/// The holder goes: a wait for data is not wanted any more.
pub(crate) fn let_go(inner: &Inner, key: Key) {
    let waits = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.get_op(key);
        op.held = false;
        op.in_kernel
    };
    if waits { cancel(inner, key) } else { advance(inner, key) }
}

/// Asks for a lend to end early. The kernel's own cancellation does not reach commands of devices.
pub(crate) fn cancel(inner: &Inner, key: Key) {
    let data = Token { key, stage: STAGE_GET }.to_user_data();
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.get_op(key);
        if let Err(error) = push(inner, Command::cancel(data), &op.lender.device, DETACHED) {
            tracing::warn!(%error, "a lend that nobody waits for is not cancelled");
        }
    }
    inner.attend();
}

/// Clears the slots that are to be, so that their buffers go back when the last request has let go of
/// them; those for which there is no room to ask stay.
pub(crate) fn clear_marked(inner: &Inner) {
    loop {
        let marked = inner.to_clear.borrow_mut().pop();
        let Some((lender, slot)) = marked else { return };
        let data = Token::of_slot(slot).to_user_data();
        if push(inner, Command::put(slot), &lender.device, data).is_err() {
            return inner.to_clear.borrow_mut().push((lender, slot));
        }
        let mut clearing = inner.clearing.borrow_mut();
        let place = usize::from(slot);
        if clearing.len() <= place {
            clearing.resize_with(place + 1, || None);
        }
        clearing[place] = Some(lender);
    }
}

/// The kernel has cleared a slot, or not.
pub(crate) fn cleared(inner: &Inner, slot: u16, result: i32) {
    // The last one closes the device, which uses the driver.
    let _lender = inner.clearing.borrow_mut()[usize::from(slot)].take();
    if result < 0 {
        let error = std::io::Error::from_raw_os_error(-result);
        // It is not used again: what is in it could be anything.
        return tracing::error!(%error, slot, "a slot was not cleared, and what it lends is kept");
    }
    inner.release_buffer(slot);
}

fn advance(inner: &Inner, key: Key) {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.get_op(key);
    let mut waker = None;
    if op.result.is_some() {
        inner.news.set(true);
        waker = op.waker.take();
    }
    let over = (!op.held && op.result.is_some())
        .then(|| (op.result.take(), op.source.take(), op.waker.take(), Rc::clone(&op.lender)));
    if over.is_some() {
        inflight.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(inflight);
    drop(over);
    inner.wake(waker);
}
