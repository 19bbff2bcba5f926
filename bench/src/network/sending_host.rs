//! The sending host, as the receiving host sees it: it does what it is told over a control connection, as long
//! as that connection lives.
//!
//! Contracts:
//!
//! 1. The listener accepts only one sending host; the kernel refuses later ones.
//! 2. A host that is once gone or silent stays so: nobody waits for it again.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{IpAddr, TcpListener},
    rc::Rc,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use handoff_command::allow_list::AllowList;
use handoff_lab::StopFlag;

use super::{
    TIMEOUT,
    far::{Connection, FarEnd},
    talk::{Answer, Hello, Order, Silence, Talk},
};
use crate::processor::Waits;

/// The time between two looks at a listener.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// The longest wait for an answer. The sending host makes a connection in half of this time, or gives up.
const FOR_AN_ANSWER: Duration = TIMEOUT.saturating_mul(2);

pub(crate) struct SendingHost {
    address: IpAddr,
    talk: RefCell<Talk>,
    /// Why the host can do nothing any more; `None` while it can.
    lost: RefCell<Option<String>>,
    connections: Cell<u64>,
    stop: StopFlag,
}

impl SendingHost {
    /// Waits for a host that may connect and speaks our protocol. Returns `None` if the user ends the wait before.
    ///
    /// # Errors
    ///
    /// The kernel's error, in one line.
    pub(crate) fn accept(
        listener: TcpListener,
        allow_list: &AllowList,
        stop: &StopFlag,
    ) -> Result<Option<Self>, String> {
        let line = |error: io::Error| format!("the sending host cannot be waited for: {error}");
        listener.set_nonblocking(true).map_err(line)?;
        while !stop.load(Ordering::Relaxed) {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_transient(&error) => {
                    thread::sleep(BETWEEN_LOOKS);
                    continue;
                }
                Err(error) => return Err(line(error)),
            };
            if !allow_list.lets_in(from) {
                continue;
            }
            let mut talk = Talk::new(stream, stop).map_err(line)?;
            match greet(&mut talk) {
                Ok(()) => {
                    // The listener goes before the host knows that it was accepted, so whoever comes after it
                    // is refused.
                    drop(listener);
                    // If the host is gone, the first order finds out.
                    let _ = talk.say(&Answer::Done(0));
                    return Ok(Some(Self {
                        address: from.ip(),
                        talk: RefCell::new(talk),
                        lost: RefCell::default(),
                        connections: Cell::default(),
                        stop: stop.clone(),
                    }));
                }
                Err(why) => {
                    allow_list.turned_away(from, &format!("it is no sending host: {why}"));
                }
            }
        }
        Ok(None)
    }

    /// The address of the host.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Makes the host connect to this listener.
    ///
    /// # Errors
    ///
    /// One line that says why there is no connection.
    pub(crate) fn connect(self: &Rc<Self>, listener: &TcpListener) -> Result<Connection, String> {
        let line = |error: io::Error| format!("no connection: {error}");
        let port = listener.local_addr().map_err(line)?.port();
        let far = self.reach(port)?.ok_or("no connection: it was refused")?;
        listener.set_nonblocking(true).map_err(line)?;
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            match listener.accept() {
                Ok((near, from)) if from.ip() == self.address => {
                    near.set_nonblocking(false).map_err(line)?;
                    return Ok((near, far));
                }
                // The connection is somebody else's.
                Ok(_) => {}
                Err(error) if is_transient(&error) => thread::sleep(BETWEEN_LOOKS),
                Err(error) => return Err(line(error)),
            }
        }
        Err(format!("the connection of the sending host did not arrive for {TIMEOUT:?}"))
    }

    /// Makes the host connect to the listener at this port. Returns `None` if nobody listens.
    ///
    /// # Errors
    ///
    /// One line that says why there is no connection.
    pub(crate) fn reach(self: &Rc<Self>, port: u16) -> Result<Option<Box<dyn FarEnd>>, String> {
        let connection = self.connections.get();
        self.connections.set(connection + 1);
        let made = self.ask(Order::Connect { connection, port })? == 1;
        // From here on the host has a connection, which ends when `far` is dropped.
        let far = || Box::new(Remote { host: Rc::clone(self), connection }) as _;
        Ok(made.then(far))
    }

    /// Why the host can do nothing any more; `None` while it can.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lost.borrow().clone()
    }

    /// Tells the host that nothing more follows.
    pub(crate) fn leave(&self) {
        // If the host is gone, the calls that needed it have said so.
        let _ = self.ask(Order::Leave);
    }

    fn ask(&self, order: Order) -> Result<u64, String> {
        if let Some(lost) = &*self.lost.borrow() {
            return Err(lost.clone());
        }
        let mut talk = self.talk.borrow_mut();
        let answer = talk.say(&order).and_then(|()| talk.hear(Some(FOR_AN_ANSWER)));
        match answer {
            Ok(Answer::Done(value)) => Ok(value),
            Ok(Answer::Failed(why)) => Err(why),
            Err(silence) => {
                let lost = format!("the sending host, {}: {silence}", self.address);
                Err(self.lost.borrow_mut().insert(lost).clone())
            }
        }
    }
}

/// Reads the host's hello, and tells the host if its version does not fit.
fn greet(talk: &mut Talk) -> Result<(), String> {
    let line = |silence: Silence| silence.to_string();
    let hello: Hello = talk.hear(Some(TIMEOUT)).map_err(line)?;
    hello.must_fit().or_else(|why| {
        talk.say(&Answer::Failed(why.clone())).map_err(line)?;
        Err(why)
    })
}

/// Whether there is nothing to accept yet, or the connection has ended since.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | ConnectionAborted | Interrupted)
}

/// The sending host's end of one connection.
struct Remote {
    host: Rc<SendingHost>,
    connection: u64,
}

impl FarEnd for Remote {
    fn begin(&self) -> Result<(), String> {
        self.host.ask(Order::Begin { connection: self.connection }).map(drop)
    }

    fn rest(&self) -> Result<u64, String> {
        self.host.ask(Order::Rest { connection: self.connection })
    }

    fn acknowledged(&self) -> Result<u64, String> {
        self.host.ask(Order::Acknowledged { connection: self.connection })
    }

    fn waits(&self) -> Waits {
        let connection = self.connection;
        let time = |order| Duration::from_nanos(self.host.ask(order).unwrap_or(0));
        let (ran, waited) = (time(Order::Ran { connection }), time(Order::Waited { connection }));
        Waits::of_another(format!("connection {connection}"), ran, waited)
    }

    fn failure(&self) -> Option<String> {
        self.host.ask(Order::Waited { connection: self.connection }).err()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // A host that is gone has ended the connection. A host that we leave ends it, too.
        if !self.host.stop.load(Ordering::Relaxed) {
            let _ = self.host.ask(Order::End { connection: self.connection });
        }
    }
}
