//! A receive: its intake, the spans that nobody has taken, its end.

use std::rc::Rc;

#[cfg(feature = "tls")]
use super::cipher::Cipher;
use super::flow::Flow;
use super::socket_state::SocketShared;
use super::waiter::Waiter;
use crate::error::{Error, Result};
use crate::lease::pool::PoolShared;
use crate::lease::{Arrivals, Intake, Span, Window};
use crate::mechanism::ReceiveEngine;
use crate::outcome::Tally;
use crate::ring::token::Stage;

/// Where a receive gets its bytes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceivesFrom {
    Queue,
    Window,
    Pool,
}

/// A receive from its start to its end.
pub(crate) struct ReceiveOp {
    pub(crate) socket: Rc<SocketShared>,
    pub(crate) from: ReceivesFrom,
    pub(crate) flow: Option<Flow>,
    pub(crate) window: Option<Window>,
    pub(crate) mapped: Mapped,
    pub(crate) pool: Option<Rc<PoolShared>>,
    /// The pool keeps the senders of datagrams.
    pub(crate) with_senders: bool,
    /// Bytes received into the pool: copied there, deciphered there, and in a way that is not known.
    pub(crate) copied: u64,
    pub(crate) ciphered: u64,
    pub(crate) unknown: u64,
    /// Spans that nobody has taken.
    pub(crate) arrivals: Arrivals,
    pub(crate) state: ReceiveState,
    /// How the stream ended; told when everything before it has been taken.
    pub(crate) end: End,
    pub(crate) holder: Waiter,
}

/// What a receive is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveState {
    /// Nothing: it is marked to start, or waits for a chunk.
    Idle,
    /// Nothing, since nobody takes what is there: empty datagrams use no chunk of the pool, which limits
    /// the others.
    Paused,
    /// Nothing: the kernel did not wait for bytes, as some do not on a non-blocking socket. The driver must
    /// wait.
    Blocked,
    /// The kernel has the request.
    Receiving,
    /// The driver waits for the socket.
    Watching,
    /// The driver waits for a moment.
    Resting,
}

/// Whether a stream has ended.
pub(crate) enum End {
    Open,
    /// It has, well or not.
    Came(Result<()>),
    /// The holder knows.
    Told,
}

impl ReceiveOp {
    pub(crate) fn new(socket: Rc<SocketShared>, intake: Intake) -> Self {
        Self {
            from: match &intake {
                Intake { queue: Some(_), .. } => ReceivesFrom::Queue,
                Intake { window: Some(_), .. } if socket.stream => ReceivesFrom::Window,
                _ => ReceivesFrom::Pool,
            },
            socket,
            arrivals: Arrivals::new(intake.queue.clone()),
            flow: intake.queue.map(|queue| Flow::open(queue, intake.most)),
            window: intake.window,
            mapped: Mapped::default(),
            pool: intake.pool,
            with_senders: intake.with_senders,
            copied: 0,
            ciphered: 0,
            unknown: 0,
            state: ReceiveState::Idle,
            end: End::Open,
            holder: Waiter::Polls,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.stage().is_some() || self.state == ReceiveState::Resting
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.end, End::Open)
    }

    /// Counts the bytes of a span, for which there was so much room.
    pub(crate) fn count(&mut self, bytes: usize, room: usize) {
        let count = match self.is_in_place(bytes, room) {
            Some(false) => &mut self.copied,
            Some(true) => &mut self.ciphered,
            None => &mut self.unknown,
        };
        *count += bytes as u64;
    }

    /// Whether nothing but a cipher's pass brought them, if that is known.
    fn is_in_place(&self, bytes: usize, room: usize) -> Option<bool> {
        #[cfg(feature = "tls")]
        if let Some(cipher) = self.socket.cipher.get()
            && let Cipher::Kernel(cipher) = &mut *cipher.borrow_mut()
        {
            return cipher.came_in_place(bytes, room);
        }
        let _ = (bytes, room);
        Some(false)
    }

    /// Nothing comes any more; the first of several reasons is told.
    pub(crate) fn end(&mut self, result: Result<()>) {
        if matches!(self.end, End::Open) {
            self.end = End::Came(result);
        }
    }

    /// Ends it, because nobody can turn the driver.
    pub(crate) fn end_without_driver(&mut self) {
        self.end(Err(Error::DriverGone));
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = self.flow.as_ref().map(Flow::tally).unwrap_or_default();
        tally.zero_copy += self.mapped.bytes;
        tally.copied += self.copied;
        tally.ciphered += self.ciphered;
        tally.unknown += self.unknown;
        tally
    }

    /// The engine in use, and why.
    pub(crate) fn engine(&self, has_ring: bool) -> (ReceiveEngine, String) {
        let engine = match (self.from, &self.flow) {
            (ReceivesFrom::Queue, Some(flow)) => flow.engine(),
            (ReceivesFrom::Window, _) => ReceiveEngine::TcpZerocopyReceive,
            _ if self.goes_by_ring(has_ring) => ReceiveEngine::Multishot,
            _ => ReceiveEngine::Epoll,
        };
        let reason = match (&self.flow, &self.window, &self.mapped.left) {
            (Some(flow), ..) => flow.reason(),
            (_, _, Some(left)) => left.clone(),
            (_, Some(_), _) if self.from == ReceivesFrom::Window => "a window was given".to_owned(),
            (_, Some(_), _) => "only streams can be mapped".to_owned(),
            _ if self.socket.is_deciphered_here() => {
                "this process deciphers what comes, and copies it into the pool".to_owned()
            }
            _ if self.socket.is_ciphered() => {
                "the kernel deciphers into the pool, where a chunk has room for a record".to_owned()
            }
            _ if has_ring => {
                "the kernel copies into the pool; the receive has no rx queue and no window"
                    .to_owned()
            }
            _ => "there is no ring".to_owned(),
        };
        (engine, reason)
    }

    /// Whether requests of a ring receive.
    pub(crate) fn goes_by_ring(&self, has_ring: bool) -> bool {
        has_ring && self.from != ReceivesFrom::Window && !self.socket.is_deciphered_here()
    }

    /// What the kernel does, if anything, and can be asked to end: it receives, or reports readiness.
    pub(crate) fn stage(&self) -> Option<Stage> {
        match self.state {
            ReceiveState::Receiving => Some(Stage::Receive),
            ReceiveState::Watching => Some(Stage::Ready),
            ReceiveState::Idle
            | ReceiveState::Paused
            | ReceiveState::Blocked
            | ReceiveState::Resting => None,
        }
    }

    /// All spans not taken, to be dropped where that may use the driver.
    pub(crate) fn rest(&mut self) -> Vec<Span> {
        self.arrivals.by_ref().collect()
    }
}

/// Bytes mapped, and bytes that had to be copied.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) bytes: u64,
    pub(crate) copied: u64,
    /// Why mapping was given up.
    pub(crate) left: Option<String>,
}
