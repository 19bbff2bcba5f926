//! One port: sending, receiving, completions.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use handoff::Buffer;

use super::engine::{Shared, Slot};
use crate::completion::Completion;
use crate::error::{Error, Refused, Result};
use crate::protocol::Message;
use crate::received::Received;

/// A port of an [`Engine`](super::Engine). Dropping it gives up unacknowledged messages; the port is free
/// again when the buffers are back.
///
/// [`Engine::bind`](super::Engine::bind) makes one, and [`Engine`](super::Engine) has an example.
pub struct Socket {
    shared: Rc<Shared>,
    port: u16,
}

impl Socket {
    pub(super) fn new(shared: Rc<Shared>, port: u16) -> Self {
        Self { shared, port }
    }

    /// The address and port.
    pub fn local_addr(&self) -> SocketAddr {
        (self.shared.address, self.port).into()
    }

    /// Sends a message. Its buffer comes back by a completion, with the cookie. Does not wait.
    ///
    /// # Errors
    ///
    /// With the buffer: too long, the destination congested, too much queued for the peer
    /// ([`Error::is_temporary`] for the last two), or the peer would have to connect to us and cannot.
    pub fn send(
        &self,
        to: SocketAddr,
        payload: Buffer,
        cookie: u32,
    ) -> Result<(), Refused<Buffer>> {
        if let Err(error) = self.shared.reachable(to.ip()) {
            return Err(Refused { payload, error });
        }
        let len = payload.len();
        let payload: Slot = Rc::new(RefCell::new(Some(payload)));
        let message =
            Message { from: self.port, to: to.ip(), port: to.port(), payload, len, cookie };
        let sent = self.shared.host().send(message);
        self.shared.settle();
        sent.map(|_| ()).map_err(|refused| {
            let payload = refused.payload.take().expect("was never lent");
            Refused { payload, error: refused.error }
        })
    }

    /// As [`Socket::send`], and waits while the destination is congested or too much is queued.
    ///
    /// # Errors
    ///
    /// The others of [`Socket::send`].
    pub async fn send_when_possible(
        &self,
        to: SocketAddr,
        mut payload: Buffer,
        cookie: u32,
    ) -> Result<(), Refused<Buffer>> {
        loop {
            match self.send(to, payload, cookie) {
                Err(refused) if refused.error.is_temporary() => payload = refused.payload,
                done => return done,
            }
            self.changed().await;
        }
    }

    /// Waits until anything has changed that sockets of the engine may wait for.
    pub async fn changed(&self) {
        self.shared.changed().await;
    }

    /// The next message, if there is one.
    pub fn try_receive(&self) -> Option<Received> {
        let delivered = self.shared.host().receive(self.port)?;
        self.shared.settle();
        Some(Received { from: delivered.from, payload: delivered.payload })
    }

    /// The next message.
    pub async fn receive(&self) -> Received {
        loop {
            match self.try_receive() {
                Some(received) => return received,
                None => self.changed().await,
            }
        }
    }

    /// Moves completions to the end of `batch`, at most `most`, and returns how many. Does not wait.
    pub fn try_completions(&self, most: usize, batch: &mut Vec<Completion<Buffer>>) -> usize {
        let mut taken = Vec::new();
        let mut host = self.shared.host();
        let waiting = host.completions(self.port).expect("is bound");
        let count = waiting.take(most, &mut taken);
        batch.extend(taken.into_iter().map(|back| Completion {
            payload: back.payload.take().expect("is back"),
            cookie: back.cookie,
            to: back.to,
            end: back.end,
            tally: back.tally,
        }));
        count
    }

    /// As [`Socket::try_completions`], and waits for the first.
    pub async fn completions(&self, most: usize, batch: &mut Vec<Completion<Buffer>>) -> usize {
        loop {
            match self.try_completions(most, batch) {
                0 if most > 0 => self.changed().await,
                count => return count,
            }
        }
    }

    /// Writes the cookies of waiting completions, oldest first, as far as there is room, leaves the
    /// completions in place, and returns their number.
    pub fn peek_completions(&self, cookies: &mut [u32]) -> usize {
        let mut host = self.shared.host();
        let waiting = host.completions(self.port).expect("is bound").peek();
        let count = waiting.len();
        for (place, completion) in cookies.iter_mut().zip(waiting) {
            *place = completion.cookie;
        }
        count
    }

    /// Gives up messages under way to a peer, or to all. The frame being written may still arrive. The
    /// buffers come back as completions.
    pub fn cancel(&self, to: Option<IpAddr>) {
        self.shared.host().cancel(self.port, to);
        self.shared.tell();
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.cancel(None);
        let (shared, port) = (self.shared.clone(), self.port);
        // The engine frees the port later.
        self.shared.spawn(async move {
            loop {
                let seen = shared.news.seen();
                if let Some(completions) = shared.host().completions(port) {
                    completions.take(usize::MAX, &mut Vec::new());
                }
                let unbound = shared.host().unbind(port);
                if !matches!(unbound, Err(Error::UnderWay(_))) {
                    break;
                }
                shared.news.after(seen).await;
            }
            shared.settle();
        });
    }
}
