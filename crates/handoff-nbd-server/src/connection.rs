//! One connection: its negotiation, its requests as they come, and what is under way of them.
//!
//! Contracts:
//! - requests are carried out side by side, as many as the limits allow; more are not received;
//! - whatever ends the connection, what was begun is carried out before it is over.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use handoff::{Client, Error, Socket};
use handoff_nbd::request::Operation;
use handoff_nbd::server::{
    Agreed, Event, Expect, Limits as OfNegotiation, Negotiation, Policy, Requests, Step,
};

use crate::ending::{End, Ending};
use crate::input::Input;
use crate::memory::{Own, SMALL};
use crate::sessions::Entered;
use crate::thread::Thread;
use crate::{other, reading, writing};

pub(crate) type Job = LocalBoxFuture<'static, ()>;

pub(crate) struct Connection {
    pub(crate) thread: Rc<Thread>,
    pub(crate) socket: Socket,
    /// Whether the kernel's pages can be sent.
    pub(crate) takes_leases: bool,
    /// Who has it gives parts of one reply to the socket.
    pub(crate) sends: Mutex<()>,
    /// Counts what the client has taken.
    pub(crate) progress: Cell<u64>,
    pub(crate) own: Own,
    ending: Arc<Ending>,
    /// Keeps older turns of its session out.
    entered: RefCell<Option<Entered>>,
    requests: Cell<usize>,
    bytes: Cell<usize>,
    /// The reader, which waits for one of these to become less.
    waits: RefCell<Option<Waker>>,
    jobs: RefCell<Vec<Job>>,
    /// Why the connection ended early.
    cut: RefCell<Option<String>>,
}

/// A part of a connection's limits.
pub(crate) struct Held {
    connection: Rc<Connection>,
    requests: usize,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.requests.update(|requests| requests - self.requests);
        connection.bytes.update(|bytes| bytes - self.bytes);
        connection.waits.take().into_iter().for_each(Waker::wake);
    }
}

/// Serves a connection to its end. `negotiated` is called when it has an export.
pub(crate) async fn serve(
    thread: Rc<Thread>,
    socket: Socket,
    client: Client,
    ending: Arc<Ending>,
    negotiated: impl Fn(),
) {
    let connection = Rc::new(Connection {
        takes_leases: client.address().is_some(),
        thread,
        socket,
        sends: Mutex::new(()),
        progress: Cell::new(0),
        own: Own::default(),
        ending: Arc::clone(&ending),
        entered: RefCell::default(),
        requests: Cell::new(0),
        bytes: Cell::new(0),
        waits: RefCell::default(),
        jobs: RefCell::default(),
        cut: RefCell::default(),
    });
    let mut jobs = FuturesUnordered::<Job>::new();
    // A set whose futures were all polled wakes itself; this one never is.
    jobs.push(Box::pin(pending()));
    let mut reading = Box::pin(read(Rc::clone(&connection), &negotiated));
    let mut known = None;
    {
        let mut told = pin!(ending.told(None));
        let ended = poll_fn(|context| {
            if let Poll::Ready(end) = told.as_mut().poll(context) {
                known = Some(end);
                return Poll::Ready(Ok(()));
            }
            let ended = reading.as_mut().poll(context);
            jobs.extend(connection.jobs.take());
            while jobs.poll_next_unpin(context).is_ready() {}
            ended
        });
        if let Err(why) = ended.await {
            connection.cut(why);
        }
    }
    drop(reading);
    jobs.extend(connection.jobs.take());
    while jobs.len() > 1 {
        if known == Some(End::Replaced) {
            connection.cut("the client began anew".to_owned());
        }
        let mut told = pin!(ending.told(known));
        known = poll_fn(|context| match told.as_mut().poll(context) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending => jobs.poll_next_unpin(context).map(|_| known),
        })
        .await;
    }
    let cut = connection.cut.take();
    if let Some(why) = cut {
        tracing::info!(%client, %why, "a connection ended early");
        connection.thread.counters.failed(why);
    }
    connection.entered.take();
    ending.finish();
}

impl Connection {
    /// Ends it for a reason; the first counts.
    pub(crate) fn cut(&self, why: String) {
        self.cut.borrow_mut().get_or_insert(why);
        self.socket.abort();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.borrow().is_some()
    }

    /// Carries something out beside all else.
    pub(crate) fn carry_out(&self, job: impl Future<Output = ()> + 'static) {
        self.jobs.borrow_mut().push(Box::pin(job));
    }

    /// Waits until there is room for a request, or for bytes. Only the reader waits.
    pub(crate) async fn room(self: &Rc<Self>, requests: usize, bytes: usize) -> Held {
        let limits = &self.thread.limits;
        poll_fn(|context| {
            let fits = self.requests.get() + requests <= limits.requests.max(1)
                && (bytes == 0
                    || self.bytes.get() == 0
                    || self.bytes.get() + bytes <= limits.bytes);
            if fits {
                return Poll::Ready(());
            }
            *self.waits.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        self.requests.update(|all| all + requests);
        self.bytes.update(|all| all + bytes);
        Held { connection: Rc::clone(self), requests, bytes }
    }
}

/// Receives until the client has done.
async fn read(connection: Rc<Connection>, negotiated: &impl Fn()) -> Result<(), String> {
    let thread = Rc::clone(&connection.thread);
    let stall = thread.limits.stall;
    let mut input = Input::new(&thread.driver, &connection.socket);
    let negotiation = negotiate(&connection, &mut input);
    let agreed = match thread.driver.timeout(stall, negotiation).await {
        Ok(agreed) => agreed?,
        Err(Error::TimedOut { .. }) => return Err("the negotiation took too long".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let Some(agreed) = agreed else { return Ok(()) };
    negotiated();
    let disk = thread.disk(&agreed.export.name).ok_or("the export is gone")?;
    let header = agreed.target.framing.request_len();
    let mut requests = Requests::new(agreed.target);
    // What comes behind large writes is received exactly, so that payload need not be copied once more.
    let mut exactly = false;
    loop {
        let held = connection.room(1, 0).await;
        let event = loop {
            let (taken, event) = requests.next(input.bytes()).map_err(|error| error.to_string())?;
            input.take(taken);
            if let Some(event) = event {
                break event;
            }
            let (within, most) = match requests.expect() {
                Expect::Header(left) => (left < header, if exactly { left } else { Input::room() }),
                _ => (true, Input::room()),
            };
            if input.more(most, within.then_some(stall)).await? == 0 {
                return match within {
                    true => Err("the client left within a request".to_owned()),
                    false => Ok(()),
                };
            }
        };
        match event {
            Event::Request(request, answer) => {
                other::count(&thread.counters, &request);
                match request.operation {
                    Operation::Write => {
                        exactly = request.length > SMALL as u64;
                        let write = writing::Write { request, answer, held };
                        writing::receive(&connection, disk, write, &mut requests, &mut input)
                            .await?;
                    }
                    Operation::Read { .. } => {
                        let bytes = reading::memory_of(&request, &answer);
                        let room = connection.room(0, bytes).await;
                        let (connection, disk) = (Rc::clone(&connection), Rc::clone(disk));
                        let read = reading::Read { request, answer, _held: [held, room] };
                        connection.clone().carry_out(reading::answer(connection, disk, read));
                    }
                    _ => {
                        let (connection, disk) = (Rc::clone(&connection), Rc::clone(disk));
                        let job = other::answer(connection.clone(), disk, request, answer, held);
                        connection.carry_out(job);
                    }
                }
            }
            Event::Refused(refusal, answer) => {
                thread.counters.write(|served| served.refused += 1);
                let reply = answer.fail(refusal.error, refusal.text);
                let job = {
                    let connection = Rc::clone(&connection);
                    async move {
                        connection.reply(&reply).await;
                        drop(held);
                    }
                };
                connection.carry_out(job);
            }
            // Payload is taken past the machine.
            Event::Payload(_) => return Err("payload came without a request".to_owned()),
            Event::Disconnect => return Ok(()),
        }
    }
}

/// Negotiates; `None` where the client leaves.
async fn negotiate(
    connection: &Rc<Connection>,
    input: &mut Input,
) -> Result<Option<Box<Agreed>>, String> {
    let thread = &connection.thread;
    let policy = Policy { lists: thread.limits.lists, ..Policy::default() };
    let (mut negotiation, greeting) = Negotiation::new(policy, OfNegotiation::default());
    connection.reply(&greeting).await;
    loop {
        let step = negotiation.next(input.bytes(), &**thread);
        let (taken, step) = step.map_err(|error| error.to_string())?;
        input.take(taken);
        match step {
            Step::More => {
                if input.more(Input::room(), None).await? == 0 {
                    return Ok(None);
                }
            }
            Step::Send(bytes) => connection.reply(&bytes).await,
            Step::Session(session) => {
                let reply = match thread.sessions.enter(session, &connection.ending).await {
                    Some(entered) => {
                        *connection.entered.borrow_mut() = Some(entered);
                        negotiation.admit(thread.sessions.instance())
                    }
                    None => negotiation.reject("a newer session of this client is there"),
                };
                connection.reply(&reply).await;
            }
            Step::Ready(bytes, agreed) => {
                connection.reply(&bytes).await;
                return Ok(Some(agreed));
            }
            Step::Abort(bytes) => {
                connection.reply(&bytes).await;
                return Ok(None);
            }
            Step::StartTls(_) | Step::Waiting => return Err("TLS is not there yet".to_owned()),
        }
    }
}
