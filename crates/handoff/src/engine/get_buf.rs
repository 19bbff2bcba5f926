//! Lending buffers of the kernel into the ring's table of registered buffers.
//!
//! Minimum kernel, capability and return signal: as [`lease::kernel`](crate::lease::kernel) says.
//!
//! Contracts:
//! - a slot leaves the table before the kernel is asked to fill it, and is free again when the kernel has
//!   confirmed that it is clear. A slot that is about to be cleared is used first, and the lend clears it;
//! - a lend to an operation that nobody waits for goes back at once;
//! - the device stays open until it has cleared all that it lent.

use std::rc::Rc;

use handoff_sys::getbuf::Command;
use io_uring::squeue;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::lease::Bytes;
use crate::lease::getbuf_device::{Binding, GetBufShared};
use crate::lease::kernel::Held;
use crate::op::{GetOp, GetState};
use crate::ring::token::{DETACHED, Stage};
use crate::ring::{Endpoint, Key, Target, Token, memlock_or};

pub(crate) fn of_source(source: &Rc<Binding>, core: &Core, offset: u64, len: u32) -> Result<GetOp> {
    if len == 0 {
        return Err(Error::Invalid("a lend has at least one byte"));
    }
    let marked = take_marked(core, &source.getbuf);
    let slot = marked.map_or_else(|| take_slot(core), Ok)?;
    let command = Command::get(slot, source.id, offset, len);
    let command = if marked.is_some() { command.anew(1) } else { command };
    let mut op = GetOp::new(&source.getbuf, command, len, slot, None);
    op.clears = marked.is_some();
    op.source = Some(Rc::clone(source));
    Ok(op)
}

pub(crate) fn fresh(getbuf: &Rc<GetBufShared>, core: &Core, len: u32) -> Result<GetOp> {
    let slot = take_slot(core)?;
    let fill = take_slot(core).inspect_err(|_| core.io.release_buffer(slot))?;
    Ok(GetOp::new(getbuf, Command::fresh(fill, slot, len), len, slot, Some(fill)))
}

fn release_slots(op: &GetOp, core: &Core) {
    for slot in [Some(op.slot), op.fill].into_iter().flatten() {
        core.io.release_buffer(slot);
    }
}

fn failure(op: &GetOp, errno: i32) -> Error {
    match errno {
        libc::ENOMEM => {
            let error = std::io::Error::from_raw_os_error(errno);
            memlock_or("lending a buffer of the kernel", op.len.into(), error)
        }
        libc::ENOBUFS => Error::EngineUnavailable {
            engine: "get-buf",
            reason:
                "as much is lent as the module allows at once: drop leases, or raise its parameters"
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

fn take_slot(core: &Core) -> Result<u16> {
    core.io.take_buffer().ok_or_else(|| Error::EngineUnavailable {
        engine: "get-buf",
        reason: "the ring's table of registered buffers is full: drop leases, or build the driver with more \
                 (DriverBuilder::registered_buffers)"
            .to_owned(),
    })
}

/// A slot that is about to be cleared by this device.
fn take_marked(core: &Core, getbuf: &Rc<GetBufShared>) -> Option<u16> {
    core.pending
        .to_clear
        .borrow_mut()
        .pop_if(|(its, _)| Rc::ptr_eq(its, getbuf))
        .map(|(_, slot)| slot)
}

fn entry(command: Command, device: &Endpoint) -> squeue::Entry {
    match device.target() {
        Target::Fixed(slot) => command.entry_fixed(slot),
        Target::Plain(fd) => command.entry(fd),
    }
}

/// Asks the kernel for the lend.
pub(crate) fn start(core: &Core, key: Key) {
    let token = Token { key, stage: Stage::Get };
    let mut full = None;
    let asked = {
        let mut records = core.records.borrow_mut();
        let op = records.get_op(key);
        match push(core, op.command, &op.getbuf.device, token.to_user_data()) {
            Ok(()) => op.state = GetState::Asked { in_kernel: true },
            Err(error) => {
                match op.clears {
                    true => full = Some((Rc::clone(&op.getbuf), op.slot)),
                    false => release_slots(op, core),
                }
                op.state = GetState::Over(Err(Error::io("asking for a lend", error)));
            }
        }
        op.kernel_holds()
    };
    if let Some((getbuf, slot)) = full {
        core.pending.mark_clear(&getbuf, slot);
    }
    core.wakes().attend();
    if !asked {
        advance(core, key);
    }
}

fn push(core: &Core, command: Command, device: &Endpoint, data: u64) -> std::io::Result<()> {
    let mut ring = core.io.ring().expect("lends need a ring").borrow_mut();
    ring.make_room(1)?;
    let entry = entry(command, device).user_data(data);
    // SAFETY: the entry contains the whole command.
    unsafe { ring.push(&entry) };
    Ok(())
}

/// The kernel has lent, or refused.
pub(crate) fn completed(core: &Core, key: Key, result: i32) {
    {
        let mut records = core.records.borrow_mut();
        let op = records.get_op(key);
        op.state = GetState::Over(if result > 0 {
            let held = Held::new(&core.pending, Rc::clone(&op.getbuf), op.slot, op.fill);
            Ok(Some(Bytes::new(held, result as u32)))
        } else {
            // The kernel has cleared a slot that was to be cleared, too.
            release_slots(op, core);
            if result == 0 { Ok(None) } else { Err(failure(op, -result)) }
        });
    }
    advance(core, key);
}

/// Hands the lease to its holder, once it is there.
pub(crate) fn take(core: &Core, key: Key) -> Option<Result<Option<Bytes>>> {
    let (result, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.get_op(key);
        (op.tell()?, op.holder.leave())
    };
    advance(core, key);
    Some(result)
}

/// The driver goes: a wait for data ends.
pub(crate) fn end(core: &Core, key: Key) {
    let waits = core.records.borrow_mut().get_op(key).kernel_holds();
    if waits { cancel(core, key) } else { advance(core, key) }
}

/// The holder goes: its wait for data ends.
pub(crate) fn let_go(core: &Core, key: Key) {
    let (waits, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.get_op(key);
        (op.kernel_holds(), op.holder.leave())
    };
    if waits { cancel(core, key) } else { advance(core, key) }
}

/// Asks for a lend to end early. The kernel's own cancellation does not reach commands of devices.
pub(crate) fn cancel(core: &Core, key: Key) {
    let token = Token { key, stage: Stage::Get };
    let asked = {
        let mut records = core.records.borrow_mut();
        let op = records.get_op(key);
        push(core, Command::cancel(token.to_user_data()), &op.getbuf.device, DETACHED)
    };
    match asked {
        Ok(()) => core.wakes().attend(),
        Err(error) => core.cancel_later(token, &error),
    }
}

/// The ring had no room for the cancellation of a lend.
pub(crate) fn cancel_again(core: &Core, key: Key) {
    let waits = core.records.borrow_mut().get_op(key).kernel_holds();
    if waits {
        cancel(core, key);
    }
}

/// Clears the slots nobody needs, so that their buffers go back when the last request has let go of them.
/// Slots for which the ring has no room stay for the next turn.
pub(crate) fn clear_marked(core: &Core) {
    loop {
        let marked = core.pending.to_clear.borrow_mut().pop();
        let Some((getbuf, slot)) = marked else { return };
        let data = Token::of_slot(slot).to_user_data();
        if push(core, Command::put(slot), &getbuf.device, data).is_err() {
            return core.pending.to_clear.borrow_mut().push((getbuf, slot));
        }
        let mut clearing = core.clearing.borrow_mut();
        let place = usize::from(slot);
        if clearing.len() <= place {
            clearing.resize_with(place + 1, || None);
        }
        clearing[place] = Some(getbuf);
    }
}

/// The kernel has cleared a slot, or failed to.
pub(crate) fn cleared(core: &Core, slot: u16, result: i32) {
    // The last slot closes the device, which uses the driver.
    let _lender = core.clearing.borrow_mut()[usize::from(slot)].take();
    if result < 0 {
        let error = std::io::Error::from_raw_os_error(-result);
        // The slot is not used again: its content is unknown.
        return tracing::error!(%error, slot, "a slot was not cleared, and what it lends is kept");
    }
    core.io.release_buffer(slot);
}

fn advance(core: &Core, key: Key) {
    let mut records = core.records.borrow_mut();
    let op = records.get_op(key);
    let mut waker = None;
    if op.is_over() {
        core.news.set(true);
        waker = op.holder.take_waker();
    }
    let over = (op.holder.is_gone() && op.is_over())
        .then(|| (op.tell(), op.source.take(), Rc::clone(&op.getbuf)));
    if over.is_some() {
        records.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(records);
    drop(over);
    core.wakes().wake(waker);
}
