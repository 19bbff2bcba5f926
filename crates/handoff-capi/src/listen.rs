//! Accepting connections.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::future::poll_fn;
use std::net::TcpListener;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use handoff::{Error, Listener, UnixListener};
use socket2::{Domain, SockRef};

use crate::boundary::{Failure, enter, owned};
use crate::driver::{self, State, Stop};
use crate::event::{HANDOFF_EVENT_ACCEPTED, HANDOFF_EVENT_ENDED, handoff_event};
use crate::handles::{self, Kind, handoff_driver, handoff_listener};
use crate::socket::Socket;

/// Accepting that ends when this goes.
pub(crate) struct Listening(#[expect(dead_code, reason = "its drop ends the task")] Stop);

/// What is listened at.
pub(crate) enum Accepts {
    Tcp(Listener),
    Unix(UnixListener),
}

impl Accepts {
    fn pause(&mut self) {
        match self {
            Self::Tcp(listener) => listener.pause(),
            Self::Unix(listener) => listener.pause(),
        }
    }

    async fn accept(&mut self) -> handoff::Result<handoff::Socket> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(socket, _)| socket),
            Self::Unix(listener) => listener.accept().await.map(|(socket, _)| socket),
        }
    }
}

impl Listening {
    /// Begins to accept.
    pub(crate) fn new(state: &Rc<State>, accepts: Accepts, user_data: u64) -> Self {
        Self(state.until_stopped(follow(Rc::downgrade(state), accepts, user_data)))
    }
}

impl Kind for Listening {
    const NAME: &'static str = "a listener";
}

/// When C was not told of so many connections, the listener asks for no more: they wait in the kernel's queue.
const UNTOLD: usize = 64;

#[derive(Default)]
struct Untold {
    count: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl Untold {
    fn has_room(&self) -> bool {
        self.count.get() < UNTOLD
    }

    fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        *self.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

/// One of them, until C is told of it.
struct Counted(Rc<Untold>);

impl Counted {
    fn new(untold: &Rc<Untold>) -> Self {
        untold.count.update(|count| count + 1);
        Self(Rc::clone(untold))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.update(|count| count - 1);
        let waker = self.0.waker.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Attaches a listening socket, of TCP or Unix, to a driver, which closes `fd` from then on, also if this fails, and begins to accept:
/// `HANDOFF_EVENT_ACCEPTED` for each connection. If you take few events, connections wait in the kernel's queue. Closing
/// the listener ends that, and so does closing the driver.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `fd` belongs to the caller; `listener` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_listen(
    driver: handoff_driver,
    fd: c_int,
    user_data: u64,
    listener: *mut handoff_listener,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let fd = unsafe { owned(fd) }?;
        let open = || {
            let state = handles::get::<Rc<State>>(driver)?;
            let socket = SockRef::from(&fd);
            let is_tcp = socket.domain().is_ok_and(|it| it == Domain::IPV4 || it == Domain::IPV6);
            let is_unix = socket.domain().is_ok_and(|it| it == Domain::UNIX);
            if !(is_tcp || is_unix) || !socket.is_listener().unwrap_or(false) {
                return Err(Failure::invalid(
                    "the descriptor is no listening socket of TCP or Unix: see listen(2)",
                ));
            }
            let accepts = match is_unix {
                true => Accepts::Unix(state.driver.listen_unix_on(fd)?),
                false => Accepts::Tcp(state.driver.listen(TcpListener::from(fd))?),
            };
            Ok(Listening::new(&state, accepts, user_data))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(listener, open) }
    })
}

async fn follow(state: Weak<State>, mut listener: Accepts, user_data: u64) {
    let untold = Rc::<Untold>::default();
    loop {
        if !untold.has_room() {
            listener.pause();
            poll_fn(|context| untold.poll_room(context)).await;
        }
        match listener.accept().await {
            Ok(socket) => {
                let Some(state) = state.upgrade() else { return };
                let event = handoff_event::new(HANDOFF_EVENT_ACCEPTED, user_data);
                let counted = Counted::new(&untold);
                // It has a handle when C is told of it, so that nobody has to close what C never saw.
                state.tell_with_handle(event, |state| {
                    drop(counted);
                    handles::insert(Rc::new(Socket { socket, state: Rc::clone(state) }))
                });
            }
            Err(error @ Error::NoDescriptor { .. }) => {
                let event = handoff_event::new(HANDOFF_EVENT_ACCEPTED, user_data);
                driver::tell(&state, event, Some(error.into()));
            }
            Err(error) => {
                let event = handoff_event::new(HANDOFF_EVENT_ENDED, user_data);
                return driver::tell(&state, event, Some(error.into()));
            }
        }
    }
}
