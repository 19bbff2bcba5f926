//! Receiving by mapping: spans that their sender may still write.
//!
//! Minimum kernel, capability, set-up, return signal: see [`Window`](crate::Window).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Socket;
use super::receive::{NextSpan, Receiver};
use crate::error::Result;
use crate::lease::{MappedIntake, MappedSpan};
use crate::mechanism::ReceiveEngine;
use crate::outcome::Tally;

impl Socket {
    /// Starts to receive by a [`Window`](crate::Window), with a pool beside it or [without](crate::Window::or), until the
    /// peer ends or you drop the receiver.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive). Also when the window alone is to receive datagrams.
    pub fn receive_mapped(&self, intake: impl Into<MappedIntake>) -> Result<MappedReceiver> {
        self.receive(intake.into().0).map(MappedReceiver)
    }
}

/// Received spans of a [`Window`](crate::Window) in order. Dropping it ends the receive.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::MappedReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// let mut all = Vec::new();
/// while let Some(span) = receiver.next_span().await {
///     let (span, before) = (span?, all.len());
///     all.resize(before + span.len(), 0);
///     span.view().read(0, &mut all[before..]);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MappedReceiver(Receiver);

impl MappedReceiver {
    /// The next span; `None` at the end of the stream.
    pub fn next_span(&mut self) -> NextMappedSpan<'_> {
        NextMappedSpan(self.0.next_span())
    }

    /// The next span if it is there already.
    pub fn try_next_span(&mut self) -> Option<Option<Result<MappedSpan>>> {
        self.0.try_next_span().map(|next| next.map(|span| span.map(MappedSpan::new)))
    }

    /// How bytes are received now, and why.
    pub fn engine(&self) -> (ReceiveEngine, String) {
        self.0.engine()
    }

    /// Bytes received so far, by the kernel's reports.
    pub fn tally(&self) -> Tally {
        self.0.tally()
    }
}

/// Future of [`MappedReceiver::next_span`].
///
/// ```no_run
/// # async fn example(mut receiver: handoff::MappedReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// match receiver.next_span().await {
///     Some(span) => println!("{} bytes", span?.len()),
///     None => println!("the stream has ended"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct NextMappedSpan<'a>(NextSpan<'a>);

impl Future for NextMappedSpan<'_> {
    type Output = Option<Result<MappedSpan>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let next = Pin::new(&mut self.0).poll(context);
        next.map(|next| next.map(|span| span.map(MappedSpan::new)))
    }
}
