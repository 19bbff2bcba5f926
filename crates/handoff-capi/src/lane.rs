//! Lanes: sends in bulk. What returned is asked of the lane, not told by events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::rc::Rc;

use handoff::{Buffer, Finished, Lane, Region};

use crate::boundary::{Failure, enter};
use crate::driver::State;
use crate::event::{HANDOFF_EVENT_RETURNED, engine_number, handoff_event};
use crate::handles::{self, Kind, handoff_buffer, handoff_lane, handoff_region, handoff_socket};
use crate::loan;
use crate::socket::Socket;

/// A lane, and whose handles what it has belongs to.
struct Held {
    lane: Lane,
    /// In the order in which they were pushed, in which they come back.
    pushed: RefCell<VecDeque<(handoff_buffer, u64)>>,
    /// The lane needs its driver, which the socket's handle may no longer keep.
    _state: Rc<State>,
}

impl Kind for Rc<Held> {
    const NAME: &'static str = "a lane";
}

/// Opens a lane of a socket for at most `capacity` buffers of `region` at a time. See the library's `Lane` for what
/// a lane is; a stream that has one takes no other sends.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `lane` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_lane_new(
    socket: handoff_socket,
    region: handoff_region,
    capacity: usize,
    lane: *mut handoff_lane,
) -> c_int {
    enter(|| {
        let open = || {
            let socket = handles::get::<Rc<Socket>>(socket)?;
            let opened = handles::with(region, |region: &mut Region| {
                Ok(socket.socket.lane(region, capacity)?)
            })?;
            Ok(Rc::new(Held {
                lane: opened,
                pushed: RefCell::new(VecDeque::with_capacity(capacity)),
                _state: Rc::clone(&socket.state),
            }))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(lane, open) }
    })
}

/// Lends buffers to a lane, to be sent in this order with the driver's next turn.
///
/// Returns how many were lent, the first of them: fewer than `count` when the lane is full, or when it can't have the
/// next, which is not lent then. If that is the first, it returns a negative error number: `-EAGAIN` when the lane is
/// full.
///
/// # Safety
///
/// `buffers` points to `count` handles, or `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_lane_push(
    lane: handoff_lane,
    buffers: *const handoff_buffer,
    count: u32,
    user_data: u64,
) -> c_int {
    enter(|| {
        if buffers.is_null() && count != 0 {
            return Err(Failure::invalid("the place of the buffers' handles is NULL"));
        }
        let count = count.min(i32::MAX as u32);
        handles::with_table(|table| {
            let held = Rc::clone(table.of::<Rc<Held>>(lane)?);
            let mut pushed = held.pushed.borrow_mut();
            for number in 0..count {
                // SAFETY: the caller vouches for so many handles.
                let handle = unsafe { buffers.add(number as usize).read() };
                let lent = table.of(handle).and_then(|place: &mut Option<Buffer>| {
                    let buffer = place.take().ok_or_else(loan::on_loan)?;
                    held.lane.push(buffer).map_err(|refused| {
                        *place = Some(refused.buffer);
                        Failure::from(refused.error)
                    })
                });
                match lent {
                    Ok(()) => pushed.push_back((handle, user_data)),
                    Err(failure) if number == 0 => return Err(failure),
                    Err(_) => return Ok(number as c_int),
                }
            }
            Ok(count as c_int)
        })
    })
}

/// Takes back what returned, in the order in which it was pushed: an event of `HANDOFF_EVENT_RETURNED` for each
/// buffer. `error_text` is NULL here: `handoff_error_text` has the text of the first that failed, from
/// which the others mostly follow.
///
/// Returns how many were written to `events`, at most `max`.
///
/// # Safety
///
/// `events` points to room for `max` events, or `max` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_lane_take(
    lane: handoff_lane,
    events: *mut handoff_event,
    max: u32,
) -> c_int {
    enter(|| {
        if events.is_null() && max != 0 {
            return Err(Failure::invalid("the place for events is NULL"));
        }
        let max = max.min(i32::MAX as u32);
        handles::with_table(|table| {
            let held = Rc::clone(table.of::<Rc<Held>>(lane)?);
            let mut pushed = held.pushed.borrow_mut();
            let (mut taken, mut has_failed) = (0, false);
            while taken < max
                && let Some(Finished { sent, buffer, receipt }) = held.lane.take()
            {
                let (handle, user_data) = pushed.pop_front().expect("what comes back was pushed");
                // Without its handle any more, it is dropped.
                if let Ok(place @ None) = table.of::<Option<Buffer>>(handle) {
                    *place = Some(buffer);
                }
                let (bytes, error) = match sent {
                    Ok(bytes) => (bytes as u64, 0),
                    Err(error) => {
                        let failure = Failure::from(error);
                        let number = -failure.errno;
                        if !has_failed {
                            has_failed = true;
                            enter(|| Err(failure));
                        }
                        (receipt.tally.total(), number)
                    }
                };
                let event = handoff_event {
                    error,
                    handle,
                    bytes,
                    tally: receipt.tally.into(),
                    engine: engine_number(receipt.engine),
                    ..handoff_event::new(HANDOFF_EVENT_RETURNED, user_data)
                };
                // SAFETY: the caller vouches for room for `max`.
                unsafe { events.add(taken as usize).write(event) };
                taken += 1;
            }
            Ok(taken as c_int)
        })
    })
}

/// Buffers that were pushed and not taken back.
///
/// Returns the number, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_lane_length(lane: handoff_lane) -> c_int {
    enter(|| Ok(handles::get::<Rc<Held>>(lane)?.lane.len() as c_int))
}
