//! Unix sockets: listening at a name, and descriptors that come with messages.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::rc::{Rc, Weak};

use handoff::{Buffer, ReceivedMessage, ReceivingMessage, UnixKind};

use crate::boundary::{Failure, enter};
use crate::driver::{self, State};
use crate::event::{HANDOFF_EVENT_TRANSFERRED, handoff_event};
use crate::handles::{
    self, handoff_buffer, handoff_driver, handoff_listener, handoff_operation, handoff_socket,
};
use crate::listen::{Accepts, Listening};
use crate::loan;
use crate::operation::{self, Cancels, Descriptors};
use crate::socket::{Address, Socket, address};

/// Listens at a name and begins to accept, as `handoff_listen` does. `address` is a `struct sockaddr_un`; one that ends
/// behind its family has the kernel choose an abstract name. `type` is `SOCK_STREAM` or `SOCK_SEQPACKET`. The file of a
/// path is removed when the listener is closed; a file that is there already is replaced if it is a socket that nobody has
/// open, else the call fails with `-EADDRINUSE`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `address` is `address_length` bytes long; `listener` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_listen_unix(
    driver: handoff_driver,
    address: *const c_void,
    address_length: usize,
    r#type: c_int,
    user_data: u64,
    listener: *mut handoff_listener,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let name = unsafe { self::address(address, address_length) }?;
        let Some(Address::Unix(name)) = name else {
            return Err(Failure::invalid("the address is no sockaddr_un"));
        };
        let kind = match r#type {
            libc::SOCK_STREAM => UnixKind::Stream,
            libc::SOCK_SEQPACKET => UnixKind::Seqpacket,
            _ => return Err(Failure::invalid("type is neither SOCK_STREAM nor SOCK_SEQPACKET")),
        };
        let open = || {
            let state = handles::get::<Rc<State>>(driver)?;
            let opened = state.driver.listen_unix(&name, kind)?;
            Ok(Listening::new(&state, Accepts::Unix(opened), user_data))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(listener, open) }
    })
}

/// Receives what there is on a Unix socket into a buffer, with at most so many descriptors that came with it:
/// `HANDOFF_EVENT_TRANSFERRED` tells that the buffer is back. Then `handoff_take_descriptors` gives the descriptors. If
/// there are more, all are closed, and the event's error is `-EMSGSIZE`. With 0 the kernel closes what comes, untold.
///
/// `operation` may be NULL if no descriptors are wanted; else it is a handle for `handoff_cancel` and
/// `handoff_take_descriptors`, which is to be closed in any case.
///
/// Returns 0, or a negative error number; nothing was lent then.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_receive_message(
    socket: handoff_socket,
    buffer: handoff_buffer,
    descriptors: usize,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        if descriptors > 0 && operation.is_null() {
            return Err(Failure::invalid(
                "descriptors are taken by the operation's handle, and the place for that is NULL",
            ));
        }
        let socket = handles::get::<Rc<Socket>>(socket)?;
        let came = Descriptors::default();
        let begin = || {
            let mut cancels = Weak::<RefCell<ReceivingMessage<Buffer>>>::new();
            loan::lend(buffer, |lent: Buffer, handle| {
                let begun = socket.socket.receive_message(lent, descriptors);
                let receiving = begun.map_err(|refused| (refused.buffer, refused.error.into()))?;
                let receiving = Rc::new(RefCell::new(receiving));
                cancels = Rc::downgrade(&receiving);
                let mut event = handoff_event::new(HANDOFF_EVENT_TRANSFERRED, user_data);
                event.handle = handle;
                let state = Rc::downgrade(&socket.state);
                socket.state.begin(follow(state, receiving, came.clone(), event));
                Ok(())
            })?;
            Ok(cancels as Weak<dyn Cancels>)
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin_with(operation, Some(came.clone().into()), begin) }
    })
}

async fn follow(
    state: Weak<State>,
    receiving: Rc<RefCell<ReceivingMessage<Buffer>>>,
    came: Descriptors,
    event: handoff_event,
) {
    let over = operation::finished(&receiving).await;
    let result = over.and_then(|ReceivedMessage { buffer, result, descriptors, .. }| {
        loan::give_back(event.handle, buffer);
        *came.borrow_mut() = descriptors;
        result
    });
    driver::tell_bytes(&state, event, result);
}

/// Takes the descriptors that came with a message, in their order, once its event was told. They are yours to close, and
/// are closed on exec. Those that you don't take are closed with the operation's handle.
///
/// Returns how many were written to `descriptors`, at most `max`, or a negative error number.
///
/// # Safety
///
/// `descriptors` points to room for `max` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_take_descriptors(
    operation: handoff_operation,
    descriptors: *mut c_int,
    max: usize,
) -> c_int {
    enter(|| {
        let came = operation::descriptors(operation)?;
        if descriptors.is_null() && max != 0 {
            return Err(Failure::invalid("the place for descriptors is NULL"));
        }
        let mut left = came.borrow_mut();
        let taken = left.len().min(max);
        for (place, descriptor) in left.drain(..taken).map(OwnedFd::into_raw_fd).enumerate() {
            // SAFETY: the caller vouches for the room.
            unsafe { descriptors.add(place).write(descriptor) };
        }
        Ok(taken as c_int)
    })
}
