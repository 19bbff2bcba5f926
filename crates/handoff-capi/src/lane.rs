//! Lanes: sends in bulk. What returned is asked of the lane, not told by events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::rc::Rc;

use handoff::{Lane, Region};

use crate::boundary::{Failure, enter, put};
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
        let socket = handles::get::<Rc<Socket>>(socket)?;
        let opened = handles::with(region, |region: &mut Region| {
            Ok(socket.socket.lane(region, capacity)?)
        })?;
        let held = Held {
            lane: opened,
            pushed: RefCell::new(VecDeque::with_capacity(capacity)),
            _state: Rc::clone(&socket.state),
        };
        let handle = handles::insert(Rc::new(held))?;
        // SAFETY: the caller vouches for it.
        unsafe { put(lane, handle) }?;
        Ok(0)
    })
}

/// Lends a buffer to a lane, to be sent with the driver's next turn.
///
/// Returns 0, or a negative error number: `-EAGAIN` when the lane is full. The buffer is not lent then.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_lane_push(
    lane: handoff_lane,
    buffer: handoff_buffer,
    user_data: u64,
) -> c_int {
    enter(|| {
        let held = handles::get::<Rc<Held>>(lane)?;
        loan::lend(buffer, |lent, _| {
            held.lane.push(lent).map_err(|refused| (refused.buffer, refused.error.into()))
        })?;
        held.pushed.borrow_mut().push_back((buffer, user_data));
        Ok(0)
    })
}

/// Takes back what returned, in the order in which it was pushed: an event of `HANDOFF_EVENT_RETURNED` for each
/// buffer. `error_text` is NULL here: `handoff_error_text` has the text of the last that failed.
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
        let held = handles::get::<Rc<Held>>(lane)?;
        if events.is_null() && max != 0 {
            return Err(Failure::invalid("the place for events is NULL"));
        }
        let mut taken = 0;
        while taken < max.min(i32::MAX as u32) {
            let Some(finished) = held.lane.take() else { break };
            let (handle, user_data) =
                held.pushed.borrow_mut().pop_front().expect("what comes back was pushed");
            loan::give_back(handle, finished.buffer);
            let mut event = handoff_event::new(HANDOFF_EVENT_RETURNED, user_data);
            event.handle = handle;
            event.tally = finished.receipt.tally.into();
            event.engine = engine_number(finished.receipt.engine);
            match finished.sent {
                Ok(bytes) => event.bytes = bytes as u64,
                Err(error) => event.error = enter(|| Err(error.into())),
            }
            // SAFETY: the caller vouches for room for `max`.
            unsafe { events.add(taken as usize).write(event) };
            taken += 1;
        }
        Ok(taken as c_int)
    })
}

/// Buffers that were pushed and not taken back.
///
/// Returns the number, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_lane_length(lane: handoff_lane) -> c_int {
    enter(|| Ok(handles::get::<Rc<Held>>(lane)?.lane.len() as c_int))
}
