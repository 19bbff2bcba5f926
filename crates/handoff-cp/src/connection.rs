//! One connection of a transfer: its spans on their way to the thread's [`sink`](crate::sink).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use handoff::{Receiver, Socket, Span};
use handoff_command::Failure;
use handoff_command::failure::Failed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::checksum::PieceSum;
use crate::gathering::Gathering;
use crate::intake::{Frames, Portion};
use crate::sink::{Sink, Writes};

/// The beginning of the message when a receive fails.
pub(crate) const RECEIVING: &str = "receiving from the peer";

/// One connection, and its bytes on their way out.
pub(crate) struct Connection<'a> {
    sink: &'a Sink<'a>,
    socket: &'a Socket,
    receiver: &'a mut Receiver,
    writes: Writes<Span>,
    /// For a file past the page cache.
    gathering: Option<Gathering<'a>>,
}

/// What a connection waits for.
enum Event {
    /// A span, or the end.
    Came(Option<Span>),
    /// A write of gathered spans is over, with its offset.
    Written(handoff::Result<handoff::Transferred<Vec<Span>>>, u64),
}

/// Whether the sender has ended the connection, whatever of it is still to be read. It waits for the answer before
/// that.
pub(crate) fn has_left(socket: &Socket) -> bool {
    let mut ended = [PollFd::new(socket, PollFlags::RDHUP)];
    // A hang-up or an error is told unasked.
    poll(&mut ended, Some(&Timespec::default())).is_ok_and(|found| found > 0)
}

impl<'a> Connection<'a> {
    pub(crate) fn new(
        sink: &'a Sink<'a>,
        socket: &'a Socket,
        receiver: &'a mut Receiver,
    ) -> Result<Self, Failure> {
        let gathering = sink.direct().map(|file| Gathering::new(sink.job, file)).transpose()?;
        Ok(Self { sink, socket, receiver, writes: Writes::default(), gathering })
    }

    /// Takes everything, to the end of the transfer; returns the bytes that were copied once more for
    /// alignment.
    ///
    /// # Errors
    ///
    /// Errors of the sender, and errors here.
    pub(crate) async fn take(self) -> Result<u64, Failure> {
        if self.sink.job.order.args.raw { self.take_raw().await } else { self.take_frames().await }
    }

    async fn take_frames(mut self) -> Result<u64, Failure> {
        let intake = self.sink.intake;
        let mut frames = Frames::new(intake);
        loop {
            let Some(mut span) = self.next_span().await? else {
                return Err(intake.broken_off());
            };
            while !span.is_empty() {
                let (taken, portion) = frames.next(&span)?;
                let part = span.split_to(taken);
                match portion {
                    Portion::Head => {}
                    Portion::Payload { offset, last } => self.put(part, offset, last).await?,
                    Portion::Hole { offset, len } => {
                        self.sink.leave_out(offset, len, || has_left(self.socket)).await?;
                    }
                    Portion::End => return self.finish().await,
                }
            }
        }
    }

    /// Takes bare bytes, to the end of the connection.
    async fn take_raw(mut self) -> Result<u64, Failure> {
        let intake = self.sink.intake;
        let mut offset = 0;
        let mut sum = PieceSum::new(intake.verify);
        while let Some(span) = self.next_span().await? {
            let len = span.len() as u64;
            sum.update(&span);
            self.put(span, offset, false).await?;
            offset += len;
        }
        intake.cover(0, offset, sum.finish())?;
        intake.ended(offset, None)?;
        self.finish().await
    }

    /// The next span; meanwhile finishes writes that are over, since they may have the chunks that it
    /// needs.
    async fn next_span(&mut self) -> Result<Option<Span>, Failure> {
        loop {
            let event = poll_fn(|context| {
                while let Some(oldest) = self.writes.0.front_mut() {
                    let Poll::Ready(over) = Pin::new(oldest).poll(context) else { break };
                    self.writes.0.pop_front();
                    self.sink.written(over)?;
                }
                if let Some(gathering) = &mut self.gathering
                    && let Poll::Ready((over, offset)) = gathering.poll_write(context)
                {
                    return Poll::Ready(Ok(Event::Written(over, offset)));
                }
                Pin::new(&mut self.receiver.next_span())
                    .poll(context)
                    .map(|span| span.transpose().failed(RECEIVING).map(Event::Came))
            })
            .await?;
            match event {
                Event::Came(span) => return Ok(span),
                Event::Written(over, offset) => {
                    if let Some(gathering) = &mut self.gathering {
                        gathering.end_write(over, offset).await?;
                    }
                }
            }
        }
    }

    /// Puts bytes in their place; `last` if later bytes belong elsewhere.
    async fn put(&mut self, part: Span, offset: u64, last: bool) -> Result<(), Failure> {
        let len = part.len();
        match &mut self.gathering {
            Some(gathering) => {
                self.sink.intake.check_size(offset, len as u64)?;
                self.sink.job.order.progress.inc(len as u64);
                gathering.put(part, offset, last).await
            }
            None => self.sink.put(part, len, offset, &mut self.writes).await,
        }
    }

    async fn finish(self) -> Result<u64, Failure> {
        let copied = match self.gathering {
            Some(gathering) => gathering.finish().await?,
            None => 0,
        };
        self.sink.finish(self.writes).await?;
        Ok(copied)
    }
}
