//! Receiving: what is drawn on, and the spans.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::num::NonZeroU32;
use std::ptr;
use std::rc::{Rc, Weak};

use handoff::{
    Buffer, Intake, MappedIntake, Pool, Receiver, Region, RxBinding, RxQueue, Span, Transfer,
    Transferred, Window,
};
use socket2::SockAddr;

use crate::boundary::{Failure, check, enter, put, put_bytes};
use crate::driver::{self, State, Stop};
use crate::event::{
    HANDOFF_EVENT_ENDED, HANDOFF_EVENT_RECEIVED, HANDOFF_EVENT_TRANSFERRED, handoff_event,
};
use crate::handles::{
    self, Kind, handoff_buffer, handoff_driver, handoff_operation, handoff_pool, handoff_receiver,
    handoff_region, handoff_socket, handoff_span,
};
use crate::loan;
use crate::operation::{self, Cancels};
use crate::socket::Socket;

/// Receive until the buffer is full.
pub const HANDOFF_RECEIVE_ALL: u32 = 1;

/// Bytes of each chunk that a pool with senders sets aside.
pub const HANDOFF_DATAGRAM_HEAD: usize = 64;

const _: () = assert!(HANDOFF_DATAGRAM_HEAD == handoff::DATAGRAM_HEAD);

/// Receiving that ends when this goes.
struct Receiving(#[expect(dead_code, reason = "its drop ends the task")] Stop);

impl Kind for Receiving {
    const NAME: &'static str = "a receiver";
}

/// What receiving draws on.
pub(crate) enum Drawn {
    Pool(Pool),
    /// A pool that keeps the senders of datagrams.
    Senders(Pool),
    Window(Window),
    Queue(RxQueue),
    /// So many bytes of what comes by a queue.
    Begin(RxQueue, NonZeroU32),
}

impl Drawn {
    pub(crate) fn intake(&self) -> Intake {
        match self {
            Self::Pool(pool) => pool.into(),
            Self::Senders(pool) => pool.with_senders(),
            // SAFETY: C gets a pointer, and the header says what the sender may do to the bytes meanwhile.
            Self::Window(window) => unsafe { MappedIntake::from(window).trust_peers() },
            Self::Queue(queue) => queue.into(),
            Self::Begin(queue, bytes) => queue.take(*bytes),
        }
    }
}

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
        let region = handles::remove::<Region>(region)?;
        let make = || {
            let state = handles::get::<Rc<State>>(driver)?;
            Ok(Rc::new(Drawn::Pool(state.driver.pool(region, chunk)?)))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(pool, make) }
    })
}

/// Makes another handle for a pool of chunks, by which UDP sockets receive datagrams with their senders:
/// `handoff_span_sender` tells who sent one. Each chunk has `HANDOFF_DATAGRAM_HEAD` bytes less for the datagram then.
/// Both handles share the chunks, and may be used side by side.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `with_senders` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_pool_with_senders(
    pool: handoff_pool,
    with_senders: *mut handoff_pool,
) -> c_int {
    enter(|| {
        let make = || match &*handles::get::<Rc<Drawn>>(pool)? {
            Drawn::Pool(pool) => Ok(Rc::new(Drawn::Senders(pool.clone()))),
            _ => Err(Failure::invalid(
                "only pools of handoff_pool_new keep senders: the handle is another",
            )),
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(with_senders, make) }
    })
}

/// Reserves address space for received pages of TCP sockets, which the kernel maps there: `places` of `place` bytes
/// each, whole pages.
///
/// A page that came over loopback or veth, also from another container, may be one that its sender can still write. So
/// the bytes of a span may change while you look: copy what you check before you check it, or receive into a pool of
/// chunks.
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
        let make = || {
            let state = handles::get::<Rc<State>>(driver)?;
            Ok(Rc::new(Drawn::Window(state.driver.window(places, place)?)))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(pool, make) }
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
        let region = handles::remove::<Region>(region)?;
        if interface.is_null() {
            return Err(Failure::invalid("the interface is NULL"));
        }
        // SAFETY: the caller vouches for it.
        let interface = unsafe { CStr::from_ptr(interface) };
        let interface = interface
            .to_str()
            .map_err(|_| Failure::invalid("the name of the interface is no UTF-8"))?;
        let make = || {
            let state = handles::get::<Rc<State>>(driver)?;
            let binding = RxBinding::new(interface, queue)?;
            Ok(Rc::new(Drawn::Queue(state.driver.rx_queue(region, &binding)?)))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(pool, make) }
    })
}

/// Makes another handle for an rx queue, by which a receiver gets `bytes` bytes and no more: it ends behind them as at
/// the end of a stream, and later bytes stay in the socket for the next receiver.
///
/// Returns 0, or a negative error number: `-EINVAL` for 0 bytes, and for a handle that `handoff_rx_queue_new` did not
/// make.
///
/// # Safety
///
/// `begin` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_rx_queue_take(
    queue: handoff_pool,
    bytes: u32,
    begin: *mut handoff_pool,
) -> c_int {
    enter(|| {
        let make = || {
            let bytes = NonZeroU32::new(bytes).ok_or_else(|| Failure::invalid("bytes is 0"))?;
            match &*handles::get::<Rc<Drawn>>(queue)? {
                Drawn::Queue(queue) => Ok(Rc::new(Drawn::Begin(queue.clone(), bytes))),
                _ => Err(Failure::invalid(
                    "only handles of handoff_rx_queue_new have a beginning: the handle is another",
                )),
            }
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(begin, make) }
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
        let begin = || {
            let (socket, begun) = received_on(socket, pool)?;
            let task = follow(Rc::downgrade(&socket.state), begun, user_data);
            Ok(Receiving(socket.state.until_stopped(task)))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(receiver, begin) }
    })
}

async fn follow(state: Weak<State>, mut receiver: Receiver, user_data: u64) {
    let mut bytes = 0;
    let mut failure = None;
    while let Some(result) = receiver.next_span().await {
        let span = match result {
            Ok(span) => span,
            Err(error) => {
                failure = Some(error.into());
                break;
            }
        };
        let mut event = handoff_event::new(HANDOFF_EVENT_RECEIVED, user_data);
        event.bytes = span.len() as u64;
        bytes += event.bytes;
        match handles::insert(Some(span)) {
            Ok(handle) => event.handle = handle,
            Err(none) => {
                failure = Some(none);
                break;
            }
        }
        driver::tell(&state, event, None);
    }
    let mut event = handoff_event::new(HANDOFF_EVENT_ENDED, user_data);
    event.bytes = bytes;
    event.tally = receiver.tally().into();
    driver::tell(&state, event, failure);
}

/// Receiving without events.
struct Bulk {
    receiver: RefCell<Receiver>,
    /// The receiver needs its driver, which the socket's handle may no longer keep.
    _state: Rc<State>,
}

impl Kind for Rc<Bulk> {
    const NAME: &'static str = "a receiver in bulk";
}

/// Begins to receive on a socket as `handoff_receive` does, but without events: after a turn of the driver,
/// `handoff_visit` shows what came. That costs less for each span. Closing the receiver ends it.
///
/// Returns 0, or a negative error number: `-EINVAL` where the socket is received on already, and with a pool with
/// senders, of which a visitor is not told.
///
/// # Safety
///
/// `receiver` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_receive_in_bulk(
    socket: handoff_socket,
    pool: handoff_pool,
    receiver: *mut handoff_receiver,
) -> c_int {
    enter(|| {
        let begin = || {
            if matches!(&*handles::get::<Rc<Drawn>>(pool)?, Drawn::Senders(_)) {
                return Err(Failure::invalid(
                    "a visitor is not told of senders: take handoff_receive, or the pool itself",
                ));
            }
            let (socket, begun) = received_on(socket, pool)?;
            Ok(Rc::new(Bulk { receiver: RefCell::new(begun), _state: Rc::clone(&socket.state) }))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(receiver, begin) }
    })
}

/// Calls `visitor` for each span that came to a receiver in bulk, in order: with its bytes, which are there to be read
/// until the visitor returns. Their chunk goes back then.
///
/// Returns 1 while more may come, 0 when the peer has closed, or the negative error number that receiving ended with,
/// once, and 0 from then on. `-EBUSY` within a visit of the same receiver.
///
/// # Safety
///
/// `visitor` can be called with `context`, and does not leave by `longjmp` or an exception.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_visit(
    receiver: handoff_receiver,
    visitor: Option<unsafe extern "C" fn(data: *const c_void, length: usize, context: *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    enter(|| {
        let visitor = visitor.ok_or_else(|| Failure::invalid("the visitor is NULL"))?;
        let bulk = handles::get::<Rc<Bulk>>(receiver)?;
        let mut receiver = bulk.receiver.try_borrow_mut().map_err(|_| {
            Failure::new(libc::EBUSY, "the receiver is visited already: let its visitor return")
        })?;
        let end = receiver.visit(|span| {
            // SAFETY: the caller vouches for it; the bytes are there until it returns.
            unsafe { visitor(span.as_ptr().cast(), span.len(), context) };
        });
        match end {
            None => Ok(1),
            Some(Ok(())) => Ok(0),
            Some(Err(error)) => Err(error.into()),
        }
    })
}

/// Begins to receive into a buffer, behind its first `at` bytes, which stay as they are: what there is, up to the
/// buffer's length. The kernel copies each byte once.
///
/// `flags`: with `HANDOFF_RECEIVE_ALL`, until the buffer is full. The buffer is on loan until
/// `HANDOFF_EVENT_TRANSFERRED` tells how many bytes came: none at the end of a stream. `operation` may be NULL; else
/// it is a handle for `handoff_cancel`, which is to be closed in any case: cancelled, it tells how many came, and
/// the stream goes on behind them.
///
/// Returns 0, or a negative error number: `-EINVAL` where the socket is received on already. Nothing was lent then.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_receive_into(
    socket: handoff_socket,
    buffer: handoff_buffer,
    at: usize,
    flags: u32,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        if flags & !HANDOFF_RECEIVE_ALL != 0 {
            return Err(Failure::invalid(
                "flags has something that is none of HANDOFF_RECEIVE_...",
            ));
        }
        let socket = handles::get::<Rc<Socket>>(socket)?;
        let begin = || {
            let mut cancels = Weak::<RefCell<Transfer<Buffer>>>::new();
            loan::lend(buffer, |mut lent: Buffer, handle| {
                if at >= lent.len() {
                    let failure = Failure::invalid("the buffer has no room behind so many bytes");
                    return Err((lent, failure));
                }
                let front = (at > 0).then(|| lent.split_to(at));
                let begun = if flags & HANDOFF_RECEIVE_ALL != 0 {
                    socket.socket.receive_exact(lent)
                } else {
                    socket.socket.receive_into(lent)
                };
                let transfer = match begun {
                    Ok(transfer) => Rc::new(RefCell::new(transfer)),
                    Err(refused) => {
                        return Err((joined(front, refused.buffer), refused.error.into()));
                    }
                };
                cancels = Rc::downgrade(&transfer);
                let mut event = handoff_event::new(HANDOFF_EVENT_TRANSFERRED, user_data);
                event.handle = handle;
                socket.state.begin(fill(Rc::downgrade(&socket.state), front, transfer, event));
                Ok(())
            })?;
            Ok(cancels as Weak<dyn Cancels>)
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begin) }
    })
}

/// The buffer with the bytes before what is filled.
fn joined(front: Option<Buffer>, rest: Buffer) -> Buffer {
    let Some(mut whole) = front else { return rest };
    whole.join(rest).expect("they were one buffer");
    whole
}

/// Begins to receive on a socket into a pool.
fn received_on(
    socket: handoff_socket,
    pool: handoff_pool,
) -> Result<(Rc<Socket>, Receiver), Failure> {
    let socket = handles::get::<Rc<Socket>>(socket)?;
    let begun = socket.socket.receive(handles::get::<Rc<Drawn>>(pool)?.intake())?;
    Ok((socket, begun))
}

async fn fill(
    state: Weak<State>,
    front: Option<Buffer>,
    transfer: Rc<RefCell<Transfer<Buffer>>>,
    event: handoff_event,
) {
    let over = operation::finished(&transfer).await;
    let result = over.and_then(|Transferred { buffer, result }| {
        loan::give_back(event.handle, joined(front, buffer));
        result
    });
    driver::tell_bytes(&state, event, result);
}

/// Where the bytes of a span are, and how many: to be read only, until the span is closed or sent. Those of a span of
/// `handoff_window_new` may change meanwhile.
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
        let place = loan::with(span, |span: &mut Span| Ok((span.as_ptr().cast(), span.len())))?;
        // SAFETY: the caller vouches for it.
        unsafe { put_bytes(data, length, place) }?;
        Ok(0)
    })
}

/// Who sent the datagram that a span is of: a `struct sockaddr_in` or `sockaddr_in6`.
///
/// `address_length` says how many bytes `address` has room for, and then how many the address takes; a
/// `struct sockaddr_storage` has room for both kinds. `datagram_length` may be NULL; else it gets the bytes of the
/// datagram as it was sent: more than the span has where the chunk had no room for all.
///
/// Returns 0, or a negative error number: `-ENODATA` for a span that was not received by a pool of
/// `handoff_pool_with_senders`, `-ENOSPC` where the address has no room. Nothing is written then.
///
/// # Safety
///
/// `address` has as much room as `address_length` says; that and `datagram_length` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_span_sender(
    span: handoff_span,
    address: *mut c_void,
    address_length: *mut usize,
    datagram_length: *mut usize,
) -> c_int {
    enter(|| {
        check(address)?;
        check(address_length)?;
        let datagram = loan::with(span, |span: &mut Span| Ok(span.datagram()))?;
        let datagram = datagram.ok_or_else(|| {
            let text = "nobody kept who sent this: receive by a pool of handoff_pool_with_senders";
            Failure::new(libc::ENODATA, text)
        })?;
        let sender = SockAddr::from(datagram.sender);
        let bytes = sender.len() as usize;
        // SAFETY: the caller vouches for it.
        let room = unsafe { address_length.read() };
        if room < bytes {
            let text = format!("the address takes {bytes} bytes, and there is room for {room}");
            return Err(Failure::new(libc::ENOSPC, text));
        }
        // SAFETY: the caller vouches for the room, and the address has so many bytes.
        unsafe {
            ptr::copy_nonoverlapping(sender.as_ptr().cast::<u8>(), address.cast(), bytes);
            put(address_length, bytes)?;
        }
        if !datagram_length.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { put(datagram_length, datagram.len) }?;
        }
        Ok(0)
    })
}
