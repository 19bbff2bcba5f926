//! The far end: threads in the other namespace that receive messages, or answer them.
//!
//! Contracts:
//!
//! 1. Before anything is sent to a thread, the thread has said that it can be reached, or why not.
//! 2. Dropping the handle ends the threads. The threads of a connection also end with the connection.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{retry_on_intr, write},
    thread::sched_setaffinity,
};

use crate::{
    network::{TIMEOUT, arrivals::Arrivals, testbed::Testbed},
    processor::Waits,
};

/// The handle of the threads.
pub(super) struct Far {
    post: Post,
    threads: Vec<JoinHandle<()>>,
}

/// What a thread and the handle share.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) arrivals: Arc<Arrivals>,
    /// An eventfd, which is readable when the thread must end.
    pub(super) end: Arc<OwnedFd>,
}

impl Post {
    /// Whether the thread must end.
    pub(super) fn is_over(&self) -> bool {
        let mut end = [PollFd::new(&self.end, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut end, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl Far {
    pub(super) fn new() -> Result<Self, String> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| format!("no eventfd: {errno}"))?;
        let post = Post { arrivals: Arc::default(), end: Arc::new(end) };
        Ok(Self { post, threads: Vec::new() })
    }

    /// Starts a thread in the other namespace. It makes its sockets there and then serves them.
    ///
    /// # Errors
    ///
    /// One line that says why they cannot be made.
    pub(super) fn start<T>(
        &mut self,
        testbed: &Testbed,
        make: impl FnOnce() -> Result<T, String> + Send + 'static,
        serve: impl FnOnce(T, &Post) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let (tell, told) = mpsc::channel();
        let (post, others) = (self.post.clone(), testbed.others());
        let work = move || {
            post.arrivals.join();
            let placed = sched_setaffinity(None, &others)
                .map_err(|errno| format!("the far end has no processor: {errno}"));
            let made = placed.and_then(|()| make());
            // The receiver of this result is gone only after its time-out.
            let _ = tell.send(made.as_ref().map(drop).map_err(String::clone));
            let served = made.and_then(|made| serve(made, &post));
            post.arrivals.end(served.err().unwrap_or_else(|| "the far end has ended".to_owned()));
        };
        let namespace = testbed.connected().namespace();
        let thread = namespace.spawn("bench-far", work).map_err(|error| error.to_string())?;
        self.threads.push(thread);
        told.recv_timeout(TIMEOUT)
            .unwrap_or_else(|_| Err(format!("the far end was not ready within {TIMEOUT:?}")))
    }

    /// Waits until this many bytes have arrived: see [`Arrivals::await_total`].
    pub(super) fn await_total(&self, bytes: u64) -> Result<(), String> {
        self.post.arrivals.await_total(bytes)
    }

    /// Why the far end has ended; `None` if it has not.
    pub(super) fn ended(&self) -> Option<String> {
        self.post.arrivals.ended()
    }

    /// How long the threads have run, and how long they were kept waiting so far.
    pub(super) fn waits(&self) -> Waits {
        self.post.arrivals.waits()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // The write does not block: nobody has written to the eventfd before.
        let _ = retry_on_intr(|| write(&self.post.end, &1_u64.to_ne_bytes()));
        for thread in self.threads.drain(..) {
            // The thread's panic was reported on stderr.
            let _ = thread.join();
        }
    }
}
