//! What a connection receives.
//!
//! Contracts:
//! - a receive outlives its waiter, so a dropped wait loses no byte;
//! - bytes behind a request stay for the next.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use handoff::{Buffer, Driver, Result, Socket, Transfer, Transferred};

use crate::room;

/// Bytes received at once if nobody knows how many will come.
const ROOM: usize = 4 << 10;
/// The same within a body in chunks.
const ROOM_FOR_MANY: usize = 16 << 10;
/// Bytes of a body that are received at once.
const PIECE: usize = 64 << 10;

pub(crate) struct Input {
    driver: Driver,
    socket: Socket,
    /// Received bytes not used yet.
    pub(crate) received: BytesMut,
    receiving: Option<Transfer<Buffer>>,
    /// The buffer for the next receive, if it is not in use.
    spare: Option<Buffer>,
    ended: bool,
}

impl Input {
    pub(crate) fn new(driver: &Driver, socket: &Socket) -> Self {
        Self {
            driver: driver.clone(),
            socket: socket.clone(),
            received: BytesMut::new(),
            receiving: None,
            spare: None,
            ended: false,
        }
    }

    /// Whether the client sends no more.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Waits for bytes behind those already received; false at the end.
    pub(crate) async fn more(&mut self) -> Result<bool> {
        self.receive(ROOM).await
    }

    /// As [`more`](Self::more), if many may come.
    pub(crate) async fn many_more(&mut self) -> Result<bool> {
        self.receive(ROOM_FOR_MANY).await
    }

    async fn receive(&mut self, room: usize) -> Result<bool> {
        Ok(match self.next(room).await? {
            Some(buffer) => {
                self.received.extend_from_slice(&buffer);
                self.keep(buffer);
                true
            }
            None => false,
        })
    }

    /// Some of the next `left` bytes of a body; `None` at the end. A buffer filled only with them is handed on
    /// itself.
    pub(crate) async fn body(&mut self, left: u64) -> Result<Option<Bytes>> {
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        if self.received.is_empty() {
            let Some(buffer) = self.next(most.clamp(ROOM, PIECE)).await? else { return Ok(None) };
            // All of it belongs to the body, and not too much of the memory is wasted.
            if buffer.len() <= most
                && buffer.capacity() > ROOM
                && buffer.len() >= buffer.capacity() / 4
            {
                return Ok(Some(Bytes::from(buffer.freeze())));
            }
            self.received.extend_from_slice(&buffer);
            self.keep(buffer);
        }
        let len = self.received.len().min(most);
        Ok(Some(self.received.split_to(len).freeze()))
    }

    fn keep(&mut self, buffer: Buffer) {
        if buffer.capacity() == ROOM {
            self.spare = Some(buffer);
        }
    }

    /// The result of the current receive, or of a new one of up to `room` bytes; `None` at the end.
    async fn next(&mut self, room: usize) -> Result<Option<Buffer>> {
        if self.ended {
            return Ok(None);
        }
        if self.receiving.is_none() {
            let spare = self.spare.take_if(|_| room == ROOM);
            let mut buffer = spare.unwrap_or_else(|| Buffer::from(vec![0; room]));
            buffer.set_len(room);
            let receive = |buffer| self.socket.receive_into(buffer);
            self.receiving = Some(room::start(&self.driver, buffer, receive).await?);
        }
        poll_fn(|context| self.poll_receive(context)).await
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buffer>>> {
        let receiving = self.receiving.as_mut().expect("was started");
        let received = ready!(Pin::new(receiving).poll(context));
        self.receiving = None;
        let Transferred { result, mut buffer } = received?;
        Poll::Ready(match result {
            Ok(0) => {
                self.ended = true;
                Ok(None)
            }
            Ok(len) => {
                buffer.set_len(len);
                Ok(Some(buffer))
            }
            Err(error) => Err(error),
        })
    }
}
