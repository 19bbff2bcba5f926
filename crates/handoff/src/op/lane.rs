//! A lane: a row of places for buffers of one region, which are sent on one socket.
//!
//! Contracts:
//! - a place owns its buffer from the push until you take it back, and gives it back only when no return
//!   signal for it can come;
//! - buffers come back in the order in which they were pushed;
//! - a request names its lane, its place, and which use of the place it is: completions of an earlier use
//!   are ignored.

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::failed::Failed;
use super::lender::Lender;
use super::socket_state::SocketShared;
use crate::error::Error;
use crate::memory::{Backing, Buffer};
use crate::ring::{Ring, Token};

/// The most buffers of a lane: as many as the user data of a request can distinguish.
pub(crate) const MAX_CAPACITY: usize = 1 << 15;

/// The most buffers in one request of a stream.
pub(crate) const PIECES: usize = 64;

/// A lane, as its handle and the driver see it.
pub(crate) struct LaneShared {
    /// `None` when the handle is gone and no request needs it.
    socket: RefCell<Option<Rc<SocketShared>>>,
    pub(crate) lender: Rc<Lender>,
    pub(crate) number: u16,
    pub(crate) state: RefCell<State>,
}

/// State of a buffer, or of a request of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is none.
    Free,
    /// No request has been made for it.
    Waiting,
    /// Its request has not completed.
    InKernel,
    /// The kernel took it, and a return signal will come.
    Lent,
    /// The same for a request that failed.
    Failing,
    /// It waits for the socket to have room.
    Blocked,
    /// You can take it.
    Back,
}

/// A place for a buffer.
pub(crate) struct Slot {
    pub(crate) buffer: Option<Buffer>,
    /// User data of the request that carries this place alone.
    pub(crate) data: u64,
    /// Bytes that the kernel took.
    pub(crate) sent: usize,
    /// Of these, bytes that it copied.
    pub(crate) copied: usize,
    pub(crate) notifications: u32,
    pub(crate) errno: i32,
    /// The registered buffer that its request named.
    pub(crate) fixed: Option<u16>,
    pub(crate) stage: Stage,
    /// The request copies, since lending failed.
    pub(crate) copies: bool,
    pub(crate) error: Option<Box<Error>>,
}

/// Why a lane accepts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Canceled,
    /// A send on the stream stopped midway: bytes that the kernel took of a buffer, and its length.
    Broken(usize, usize),
}

pub(crate) struct State {
    pub(crate) backing: Arc<Backing>,
    /// A power of two of them; their counters only grow.
    pub(crate) slots: Box<[Slot]>,
    pub(crate) capacity: u32,
    /// The oldest place not taken back.
    pub(crate) head: u32,
    /// The first place that no request carries.
    pub(crate) next: u32,
    pub(crate) tail: u32,
    /// Datagrams to submit again.
    pub(crate) again: Vec<u16>,
    /// What a stream needs to keep its order.
    pub(crate) stream: Option<Stream>,
    /// The ring's id.
    pub(crate) ring: u32,
    pub(crate) reports_usage: bool,
    /// The driver knows that there is something to submit.
    pub(crate) marked: bool,
    pub(crate) end: Option<Ended>,
    /// The handle is gone.
    pub(crate) closed: bool,
    /// Nothing else may send on the stream.
    pub(crate) has_stream: bool,
    /// The task that waits for a buffer to come back.
    pub(crate) for_back: Waiting,
    /// The task that waits for room.
    pub(crate) for_room: Waiting,
}

/// Tasks that wait for the same.
#[derive(Default)]
pub(crate) struct Waiting(Vec<Waker>);

/// A request of a stream, from its submission until its bytes are returned.
pub(crate) struct Flight {
    pub(crate) data: u64,
    /// Bytes that it carries, or that the kernel took.
    pub(crate) bytes: usize,
    pub(crate) stage: Stage,
    pub(crate) copied: bool,
}

pub(crate) struct Stream {
    /// As many as places; their counters only grow.
    pub(crate) flights: Box<[Flight]>,
    /// The oldest that is not over.
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The newest is with the kernel, or the driver waits for the socket.
    pub(crate) busy: bool,
    /// The wait for room on the socket.
    pub(crate) wait: Option<Token>,
    /// Bytes of the first place not carried whole that the kernel took.
    pub(crate) offset: usize,
    /// The first place whose bytes have not all been returned.
    pub(crate) settled: u32,
    /// The errno that ended the stream.
    pub(crate) errno: i32,
    /// The registered buffer that the last request named.
    pub(crate) fixed: Option<u16>,
    /// Whether that request could have named one, and did not.
    pub(crate) kept_from_slot: bool,
    /// The next request copies, since lending failed.
    pub(crate) copies: bool,
    /// The message of a request of several buffers. Boxed: the kernel gets its address.
    pub(crate) message: Box<Message>,
}

/// Describes several buffers to the kernel.
pub(crate) struct Message {
    pub(crate) header: libc::msghdr,
    pub(crate) pieces: [libc::iovec; PIECES],
}

impl LaneShared {
    pub(crate) fn new(socket: &Rc<SocketShared>, number: u16, state: State) -> Self {
        Self {
            socket: RefCell::new(Some(Rc::clone(socket))),
            lender: Rc::clone(&socket.lender),
            number,
            state: RefCell::new(state),
        }
    }

    /// The socket, which every request needs.
    #[inline]
    pub(crate) fn socket(&self) -> Ref<'_, SocketShared> {
        Ref::map(self.socket.borrow(), |socket| {
            &**socket.as_ref().expect("a request has its socket")
        })
    }

    /// Whether no request needs the socket any more.
    #[inline]
    pub(crate) fn has_let_go(&self) -> bool {
        self.socket.borrow().is_none()
    }

    /// The socket, if it is still needed.
    pub(crate) fn socket_if_needed(&self) -> Option<Rc<SocketShared>> {
        self.socket.borrow().clone()
    }

    /// The socket, once no request needs it any more; to be dropped where that may use the driver.
    pub(crate) fn take_socket_if(
        &self,
        is_done: impl FnOnce() -> bool,
    ) -> Option<Rc<SocketShared>> {
        let mut socket = self.socket.borrow_mut();
        if socket.is_some() && is_done() { socket.take() } else { None }
    }

    /// Buffers pushed and not taken back.
    pub(crate) fn len(&self) -> usize {
        self.state.borrow().len() as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.state.borrow().capacity as usize
    }

    /// An error for the holder of a buffer.
    #[cold]
    pub(crate) fn error(&self, errno: i32, slot: &Slot, in_slot: bool) -> Error {
        let socket = self.socket();
        let send = failed(&socket, slot);
        if slot.copies || in_slot { send.error(errno) } else { send.zero_copy_error(errno) }
    }

    /// Whether a failure is about zero copy itself, so that copying may work.
    pub(crate) fn may_copy_instead(&self, errno: i32, slot: &Slot) -> bool {
        let is_free = self.lender.chooser.borrow().is_free();
        is_free && failed(&self.socket(), slot).is_about_zero_copy(errno)
    }
}

fn failed<'a>(socket: &'a SocketShared, slot: &Slot) -> Failed<'a> {
    Failed {
        socket,
        done: slot.sent,
        total: slot.len(),
        segment: 0,
        addressed: false,
        copies: slot.copies,
    }
}

impl Slot {
    /// User data of the request that has not completed.
    fn under_way(&self) -> Option<Token> {
        let token = Token::from_user_data(self.data);
        match self.stage {
            Stage::InKernel => Some(token),
            Stage::Blocked => Some(token.of_lane_readiness()),
            Stage::Free | Stage::Waiting | Stage::Lent | Stage::Failing | Stage::Back => None,
        }
    }

    fn free(data: u64) -> Self {
        Self {
            buffer: None,
            data,
            sent: 0,
            copied: 0,
            notifications: 0,
            errno: 0,
            fixed: None,
            stage: Stage::Free,
            copies: false,
            error: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    #[cold]
    pub(crate) fn fail(&mut self, error: Error) {
        self.error = Some(Box::new(error));
        self.stage = Stage::Back;
    }
}

impl State {
    /// An empty lane. `data` gives the user data of a place's first request.
    pub(crate) fn new(
        ring: &Ring,
        backing: &Arc<Backing>,
        capacity: usize,
        stream: bool,
        data: impl Fn(usize) -> u64,
    ) -> Self {
        let places = capacity.next_power_of_two();
        Self {
            backing: Arc::clone(backing),
            slots: (0..places).map(|place| Slot::free(data(place))).collect(),
            capacity: capacity as u32,
            head: 0,
            next: 0,
            tail: 0,
            again: Vec::with_capacity(places),
            stream: stream.then(|| Stream::new(places, data)),
            ring: ring.id,
            reports_usage: ring.reports_usage,
            marked: false,
            end: None,
            closed: false,
            has_stream: stream,
            for_back: Waiting::default(),
            for_room: Waiting::default(),
        }
    }

    #[inline]
    pub(crate) fn slot(&mut self, place: u32) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[place as usize & mask]
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether there is something to submit now.
    pub(crate) fn goes_on(&self) -> bool {
        match &self.stream {
            Some(stream) => stream.may_go_on() && self.next != self.tail && self.end.is_none(),
            None => !self.again.is_empty(),
        }
    }

    /// Whether the kernel has nothing but lent pages, and gets nothing more.
    pub(crate) fn is_only_lent(&self) -> bool {
        let is_taken = self.next == self.tail && !matches!(self.end, Some(Ended::Broken(..)));
        is_taken
            && match &self.stream {
                Some(stream) => !stream.busy,
                None => {
                    let is_under_way = |slot: &Slot| slot.under_way().is_some();
                    self.again.is_empty() && !self.slots.iter().any(is_under_way)
                }
            }
    }

    /// User data of requests that have not completed.
    pub(crate) fn under_way(&self) -> Vec<Token> {
        match &self.stream {
            Some(stream) => stream.under_way().into_iter().collect(),
            None => self.slots.iter().filter_map(Slot::under_way).collect(),
        }
    }

    /// User data of the same request, if it has not completed.
    pub(crate) fn still_under_way(&self, token: Token) -> Option<Token> {
        let now = match &self.stream {
            Some(stream) => stream.under_way(),
            None => self.slots.get(usize::from(token.place())).and_then(Slot::under_way),
        };
        now.filter(|now| now.key == token.key)
    }

    /// A wait for room is over.
    pub(crate) fn unblock(&mut self, token: Token) {
        if let Some(stream) = &mut self.stream {
            (stream.wait, stream.busy) = (None, false);
            return;
        }
        let place = token.place();
        self.slots[usize::from(place)].stage = Stage::Waiting;
        self.again.push(place);
    }

    /// Leaks what a request that has not completed may still read; returns how many buffers that is. Lent
    /// pages of a region outlive their mapping.
    pub(crate) fn abandon(&mut self) -> usize {
        let mut leaked = 0;
        for slot in &mut self.slots {
            if slot.stage == Stage::InKernel {
                leaked += 1;
                std::mem::forget(slot.buffer.take());
            }
        }
        leaked + self.abandon_stream()
    }

    fn abandon_stream(&mut self) -> usize {
        let Some(stream) = &mut self.stream else { return 0 };
        if !stream.busy || stream.wait.is_some() {
            return 0;
        }
        let idle = Box::new(Message::empty());
        std::mem::forget(std::mem::replace(&mut stream.message, idle));
        let mask = self.slots.len() - 1;
        let mut leaked = 0;
        while self.next != self.tail {
            std::mem::forget(self.slots[self.next as usize & mask].buffer.take());
            self.next = self.next.wrapping_add(1);
            leaked += 1;
        }
        leaked
    }
}

impl Waiting {
    /// Returns a waker that is not needed, to be dropped where it may use the lane.
    #[must_use]
    pub(crate) fn add(&mut self, waker: Waker) -> Option<Waker> {
        if self.0.iter().any(|it| it.will_wake(&waker)) {
            return Some(waker);
        }
        self.0.push(waker);
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.0)
    }
}

impl Stream {
    fn new(places: usize, data: impl Fn(usize) -> u64) -> Self {
        let flight =
            |place| Flight { data: data(place), bytes: 0, stage: Stage::Free, copied: false };
        Self {
            flights: (0..places).map(flight).collect(),
            first: 0,
            last: 0,
            busy: false,
            wait: None,
            offset: 0,
            settled: 0,
            errno: 0,
            fixed: None,
            kept_from_slot: false,
            copies: false,
            message: Box::new(Message::empty()),
        }
    }

    pub(crate) fn flight(&mut self, number: u32) -> &mut Flight {
        let mask = self.flights.len() - 1;
        &mut self.flights[number as usize & mask]
    }

    fn in_flight(&self) -> u32 {
        self.last.wrapping_sub(self.first)
    }

    /// Whether the lane may make another request.
    pub(crate) fn may_go_on(&self) -> bool {
        !self.busy && (self.in_flight() as usize) < self.flights.len()
    }

    /// What has not completed.
    fn under_way(&self) -> Option<Token> {
        let newest = self.last.wrapping_sub(1) as usize & (self.flights.len() - 1);
        match self.wait {
            Some(wait) => Some(wait.of_lane_readiness()),
            None => self.busy.then(|| Token::from_user_data(self.flights[newest].data)),
        }
    }
}

impl Message {
    fn empty() -> Self {
        // SAFETY: all-zero bytes are a valid message header without a name, control data or pieces, and valid
        // empty pieces.
        unsafe { std::mem::zeroed() }
    }
}
