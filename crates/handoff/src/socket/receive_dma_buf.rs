//! Receiving into foreign memory: a stream of places in a dma-buf.
//!
//! Minimum kernel, capability, set-up, return signal: see [`DmaBufQueue`].

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Socket;
use super::receive::{NextSpan, Receiver};
use crate::error::Result;
use crate::lease::{DmaBufQueue, DmaBufSpan};
use crate::mechanism::ReceiveEngine;
use crate::outcome::Tally;

impl Socket {
    /// Starts to receive into the dma-buf of a queue, until the peer ends or you drop the receiver.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    pub fn receive_to_dma_buf(&self, queue: &DmaBufQueue) -> Result<DmaBufReceiver> {
        self.receive(&queue.0).map(DmaBufReceiver)
    }
}

/// Received spans of a [`DmaBufQueue`] in order. Dropping it ends the receive.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::DmaBufReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// while let Some(span) = receiver.next_span().await {
///     let span = span?;
///     println!("{} bytes at {}", span.len(), span.offset());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DmaBufReceiver(Receiver);

impl DmaBufReceiver {
    /// The next span; `None` at the end of the stream.
    pub fn next_span(&mut self) -> NextDmaBufSpan<'_> {
        NextDmaBufSpan(self.0.next_span())
    }

    /// The next span if it is there already.
    pub fn try_next_span(&mut self) -> Option<Option<Result<DmaBufSpan>>> {
        self.0.try_next_span().map(|next| next.map(|span| span.map(DmaBufSpan::new)))
    }

    /// How bytes are received, and why.
    pub fn engine(&self) -> (ReceiveEngine, String) {
        self.0.engine()
    }

    /// Bytes received so far, by the kernel's reports.
    pub fn tally(&self) -> Tally {
        self.0.tally()
    }
}

/// Future of [`DmaBufReceiver::next_span`].
///
/// ```no_run
/// # async fn example(mut receiver: handoff::DmaBufReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// match receiver.next_span().await {
///     Some(span) => println!("{:?}", span?),
///     None => println!("the stream has ended"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct NextDmaBufSpan<'a>(NextSpan<'a>);

impl Future for NextDmaBufSpan<'_> {
    type Output = Option<Result<DmaBufSpan>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let next = Pin::new(&mut self.0).poll(context);
        next.map(|next| next.map(|span| span.map(DmaBufSpan::new)))
    }
}
