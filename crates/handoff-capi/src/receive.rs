//! Receiving: what is drawn on, and the spans.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::rc::{Rc, Weak};

use futures_util::future::{AbortHandle, Abortable};
use handoff::{Intake, Receiver, Region, RxBinding, Span};

use crate::boundary::{Failure, enter, put};
use crate::driver::{self, State};
use crate::event::{HANDOFF_EVENT_ENDED, HANDOFF_EVENT_RECEIVED, handoff_event};
use crate::handles::{
    self, Kind, handoff_driver, handoff_pool, handoff_receiver, handoff_region, handoff_socket,
    handoff_span,
};
use crate::loan;
use crate::socket::Socket;

/// Receiving that ends when this goes.
struct Stop {
    task: AbortHandle,
    state: Weak<State>,
}

impl Kind for Stop {
    const NAME: &'static str = "a receiver";
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.task.abort();
        // The socket can be received on anew at once.
        if let Some(state) = self.state.upgrade() {
            state.run();
        }
    }
}

/// What receiving draws on.
struct Drawn(Box<dyn Fn() -> Intake>);

impl Kind for Rc<Drawn> {
    const NAME: &'static str = "a pool";
}

/// Makes a region a pool of chunks of `chunk` bytes to receive into. No buffer may have been cut from the region.
/// The region's handle ends, also if this fails.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_pool_new(
    driver: handoff_driver,
    region: handoff_region,
    chunk: usize,
    pool: *mut handoff_pool,
) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        let made = state.driver.pool(handles::remove::<Region>(region)?, chunk)?;
        let drawn = Drawn(Box::new(move || Intake::from(&made)));
        // SAFETY: the caller vouches for it.
        unsafe { give(pool, drawn) }
    })
}

/// # Safety
///
/// `pool` is NULL or can be written.
unsafe fn give(pool: *mut handoff_pool, drawn: Drawn) -> Result<c_int, Failure> {
    let handle = handles::insert(Rc::new(drawn))?;
    // SAFETY: the caller vouches for it.
    unsafe { put(pool, handle) }?;
    Ok(0)
}

/// Reserves address space for received pages of TCP sockets, which the kernel maps there: `places` of `place` bytes
/// each, whole pages.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_window_new(
    driver: handoff_driver,
    places: usize,
    place: usize,
    pool: *mut handoff_pool,
) -> c_int {
    enter(|| {
        let window = handles::get::<Rc<State>>(driver)?.driver.window(places, place)?;
        let drawn = Drawn(Box::new(move || Intake::from(&window)));
        // SAFETY: the caller vouches for it.
        unsafe { give(pool, drawn) }
    })
}

/// Binds an rx queue of a network card, with the region as the memory that it receives into. The region's handle
/// ends, also if this fails. The driver must have been made with `zero_copy_receive`.
///
/// Returns 0, or a negative error number: `-EOPNOTSUPP` with the reason and what to do.
///
/// # Safety
///
/// `interface` is a string; `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_rx_queue_new(
    driver: handoff_driver,
    region: handoff_region,
    interface: *const c_char,
    queue: u32,
    pool: *mut handoff_pool,
) -> c_int {
    enter(|| {
        if interface.is_null() {
            return Err(Failure::invalid("the interface is NULL"));
        }
        // SAFETY: the caller vouches for it.
        let interface = unsafe { CStr::from_ptr(interface) };
        let interface = interface
            .to_str()
            .map_err(|_| Failure::invalid("the name of the interface is no UTF-8"))?;
        let state = handles::get::<Rc<State>>(driver)?;
        let binding = RxBinding::new(interface, queue)?;
        let bound = state.driver.rx_queue(handles::remove::<Region>(region)?, &binding)?;
        let drawn = Drawn(Box::new(move || Intake::from(&bound)));
        // SAFETY: the caller vouches for it.
        unsafe { give(pool, drawn) }
    })
}

/// Begins to receive on a socket: `HANDOFF_EVENT_RECEIVED` for each span that comes, then one
/// `HANDOFF_EVENT_ENDED`. Closing the receiver ends it too, without an event; so does closing the driver.
///
/// Spans take chunks of the pool until they are closed; with none left, receiving waits.
///
/// Returns 0, or a negative error number: `-EINVAL` where the socket is received on already.
///
/// # Safety
///
/// `receiver` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_receive(
    socket: handoff_socket,
    pool: handoff_pool,
    user_data: u64,
    receiver: *mut handoff_receiver,
) -> c_int {
    enter(|| {
        let socket = handles::get::<Rc<Socket>>(socket)?;
        let drawn = handles::get::<Rc<Drawn>>(pool)?;
        let begun = socket.socket.receive((drawn.0)())?;
        let (task, registration) = AbortHandle::new_pair();
        let stop = Stop { task, state: Rc::downgrade(&socket.state) };
        let handle = handles::insert(stop)?;
        // SAFETY: the caller vouches for it.
        if let Err(failure) = unsafe { put(receiver, handle) } {
            drop(handles::remove::<Stop>(handle));
            return Err(failure);
        }
        let task =
            Abortable::new(follow(Rc::downgrade(&socket.state), begun, user_data), registration);
        socket.state.begin(async move {
            // Whoever ended it knows.
            let _ = task.await;
        });
        Ok(0)
    })
}

async fn follow(state: Weak<State>, mut receiver: Receiver, user_data: u64) {
    while let Some(result) = receiver.next_span().await {
        let span = match result {
            Ok(span) => span,
            Err(error) => return ended(&state, user_data, Some(error.into())),
        };
        let mut event = handoff_event::new(HANDOFF_EVENT_RECEIVED, user_data);
        event.bytes = span.len() as u64;
        match handles::insert(Some(span)) {
            Ok(handle) => event.handle = handle,
            Err(failure) => return ended(&state, user_data, Some(failure)),
        }
        driver::tell(&state, event, None);
    }
    ended(&state, user_data, None);
}

fn ended(state: &Weak<State>, user_data: u64, failure: Option<Failure>) {
    driver::tell(state, handoff_event::new(HANDOFF_EVENT_ENDED, user_data), failure);
}

/// Where the bytes of a span are, and how many: to be read only, until the span is closed or sent.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `data` and `length` can be written; `length` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_span_data(
    span: handoff_span,
    data: *mut *const c_void,
    length: *mut usize,
) -> c_int {
    enter(|| {
        let (start, bytes) = loan::with(span, |span: &mut Span| Ok((span.as_ptr(), span.len())))?;
        // SAFETY: the caller vouches for it.
        unsafe { put(data, start.cast()) }?;
        if !length.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { put(length, bytes) }?;
        }
        Ok(0)
    })
}
