//! A connection, as what is done for it sees it: its socket, its limits, and why it ends.
//!
//! Contracts:
//! - requests are carried out side by side, as many as the limits allow; more are not received;
//! - whatever is wrong first is why the connection ends.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex;
use handoff::{Client, Socket};

use crate::ending::Ending;
use crate::memory::Own;
use crate::sessions::Entered;
use crate::thread::Thread;

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
    pub(crate) ending: Arc<Ending>,
    /// Keeps older turns of its session out.
    pub(crate) entered: RefCell<Option<Entered>>,
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

impl Connection {
    pub(crate) fn new(
        thread: Rc<Thread>,
        socket: Socket,
        client: Client,
        ending: Arc<Ending>,
    ) -> Rc<Self> {
        Rc::new(Self {
            takes_leases: client.address().is_some(),
            thread,
            socket,
            sends: Mutex::new(()),
            progress: Cell::new(0),
            own: Own::default(),
            ending,
            entered: RefCell::default(),
            requests: Cell::new(0),
            bytes: Cell::new(0),
            waits: RefCell::default(),
            jobs: RefCell::default(),
            cut: RefCell::default(),
        })
    }

    /// Ends it for a reason; the first counts.
    pub(crate) fn cut(&self, why: String) {
        self.cut.borrow_mut().get_or_insert(why);
        self.socket.abort();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.borrow().is_some()
    }

    /// Why it ended early; told once.
    pub(crate) fn why_cut(&self) -> Option<String> {
        self.cut.take()
    }

    /// What is to be carried out, and has not begun.
    pub(crate) fn new_jobs(&self) -> Vec<Job> {
        self.jobs.take()
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
