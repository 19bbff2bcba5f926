//! Replies on their way to a client.
//!
//! Contracts:
//! - the parts of a reply are given to the socket together, so that no other reply comes between;
//! - a client that takes nothing for too long ends its connection;
//! - a reply is over when its memory is back.

use std::time::Duration;

use handoff::{Buffer, Error, Lease, OnLoan, Payload, Sent, Socket};

use crate::connection::Connection;
use crate::start::start;

/// How long memory may stay away once the connection is reset.
const AFTER_RESET: Duration = Duration::from_secs(2);

/// Payload of a reply.
pub(crate) enum Body {
    Memory(Buffer),
    Pages(Lease),
}

/// Memory that the kernel has.
enum Loan {
    Memory(OnLoan<Buffer>),
    Pages(OnLoan<Lease>),
}

/// A part of a reply that is under way.
pub(crate) struct Going {
    sent: Sent,
    loan: Loan,
    is_payload: bool,
}

impl Connection {
    /// Sends bytes that are no payload.
    pub(crate) async fn reply(&self, bytes: &[u8]) {
        self.send(bytes, Vec::new()).await;
    }

    /// Sends a header and what follows it, and waits until all is back.
    pub(crate) async fn send(&self, head: &[u8], bodies: Vec<Body>) {
        let going = {
            let _turn = self.sends.lock().await;
            self.give(head, bodies).await
        };
        self.settle(going).await;
    }

    /// Gives parts to the socket. Whoever calls it has the turn.
    pub(crate) async fn give(&self, head: &[u8], bodies: Vec<Body>) -> Vec<Going> {
        let mut all = Vec::new();
        if self.is_cut() {
            return all;
        }
        if bodies.is_empty() {
            let given = self.part(&[], Buffer::from(head.to_vec()), Loan::Memory).await;
            all.extend(given.map(|(sent, loan)| Going { sent, loan, is_payload: false }));
            return all;
        }
        let mut head = head;
        for body in bodies {
            let given = match body {
                Body::Memory(buffer) => self.part(head, buffer, Loan::Memory).await,
                Body::Pages(lease) => self.part(head, lease, Loan::Pages).await,
            };
            let Some((sent, loan)) = given else { break };
            all.push(Going { sent, loan, is_payload: true });
            head = &[];
        }
        all
    }

    async fn part<B: Payload>(
        &self,
        head: &[u8],
        buffer: B,
        loan: impl Fn(OnLoan<B>) -> Loan,
    ) -> Option<(Sent, Loan)> {
        let send = |buffer| Socket::message(&self.socket, buffer).header(head).send();
        match start(&self.thread.driver, buffer, send).await {
            Ok(sending) => {
                let (sent, on_loan) = sending.split();
                Some((sent, loan(on_loan)))
            }
            Err(error) => {
                self.cut(format!("sending: {error}"));
                None
            }
        }
    }

    /// Waits until parts are sent and back.
    pub(crate) async fn settle(&self, all: Vec<Going>) {
        for Going { sent, loan, is_payload } in all {
            if let Err(error) = self.patiently(sent).await {
                self.cut(format!("sending: {error}"));
            }
            let back = match loan {
                Loan::Memory(loan) => {
                    self.patiently(loan).await.map(|returned| returned.receipt.tally)
                }
                Loan::Pages(loan) => {
                    self.patiently(loan).await.map(|returned| returned.receipt.tally)
                }
            };
            match back {
                Ok(tally) if is_payload => {
                    self.thread.counters.write(|served| served.sent += tally);
                }
                Ok(_) => {}
                Err(error) => self.cut(format!("sending: {error}")),
            }
        }
    }

    /// Waits for as long as the client takes something now and then.
    async fn patiently<T>(
        &self,
        mut operation: impl Future<Output = handoff::Result<T>> + Unpin,
    ) -> handoff::Result<T> {
        let driver = &self.thread.driver;
        while !self.is_cut() {
            let before = self.progress.get();
            match driver.timeout(self.thread.limits.stall, &mut operation).await {
                Ok(done) => {
                    self.progress.update(|progress| progress + 1);
                    return done;
                }
                Err(Error::TimedOut { .. }) if self.progress.get() == before => {
                    self.cut("the client takes nothing that is sent".to_owned());
                }
                Err(Error::TimedOut { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        driver.timeout(AFTER_RESET, operation).await?
    }
}
