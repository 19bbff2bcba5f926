//! Receiving messages of a Unix socket with what came beside their bytes: descriptors, and the sender.
//!
//! Minimum kernel: any; with a ring 5.13. Capability: none. Return signal: the completion. The kernel copies each byte
//! once, into the buffer.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::Socket;
use crate::core::Core;
use crate::engine::transfer;
use crate::error::{Error, Result};
use crate::handle::{Awaited, Cancel, Handle};
use crate::op::ancillary::MAX_DESCRIPTORS;
use crate::op::loan::{Lendable, PayloadMut, Refused};
use crate::op::{Attached, Direction, TransferOp};
use crate::ring::Key;
use crate::transfer::start;
use crate::unix::UnixAddress;

impl Socket {
    /// Receives what there is on a Unix socket, up to the lengths in use of a buffer or of a vector's buffers, with at
    /// most so many descriptors that came with it ([`Message::descriptors`](crate::Message::descriptors)). They are
    /// closed on exec. If there are more, all are closed, and you get
    /// [`Error::DescriptorsCut`]. With 0 the kernel closes what comes, untold. On a stream a receive does not go beyond
    /// bytes that came with descriptors.
    ///
    /// Descriptors of a receive that you drop are closed. Of a stream its bytes are lost, too, as with
    /// [`receive_into`](Self::receive_into): cancel it and wait.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when the socket is none of Unix, the buffer is empty or a lease, more than 253 descriptors are wanted,
    /// too many operations are under way, or the socket has a receiver of any kind.
    pub fn receive_message<B: PayloadMut>(
        &self,
        buffer: B,
        descriptors: usize,
    ) -> Result<ReceivingMessage<B>, Refused<B>> {
        let (extent, core) = (buffer.extent(), &self.driver.core);
        let reception = &self.shared.reception;
        let refusal = if !self.shared.unix {
            Err(Error::Invalid("only Unix sockets receive descriptors and names of senders"))
        } else if extent.bytes == 0 {
            Err(Error::Invalid("a receive needs a buffer with room for a byte"))
        } else if descriptors > MAX_DESCRIPTORS {
            Err(Error::Invalid("a message carries 253 descriptors at most"))
        } else if extent.home.is_some() {
            Err(Error::Invalid("a message is received into user memory, not into a lease"))
        } else {
            self.shared
                .check_plain("TLS has no messages: receive by receive_into or receive_exact")
                .and_then(|()| reception.check_free())
                .and_then(|()| reception.check_whole())
                .and_then(|()| core.check_room())
        };
        if let Err(error) = refusal {
            return Err(Refused { buffer, error });
        }
        let socket = Attached::Socket(Rc::clone(&self.shared));
        let direction = Direction::ReceiveMessage;
        let mut op = TransferOp::new(socket, true, direction, None, buffer.into_loan());
        op.most_descriptors = descriptors;
        Ok(ReceivingMessage(start(&self.driver, op)))
    }
}

/// A message of a Unix socket.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let message = socket.receive_message(buffer, 4)?.await?;
/// let bytes = message.result?;
/// println!("{:?} sent {:?} with {} descriptors", message.sender, &message.buffer[..bytes], message.descriptors.len());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ReceivedMessage<B> {
    /// Its bytes, or the error. 0 is the end of a connection.
    pub result: Result<usize>,
    /// The buffer.
    pub buffer: B,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
    /// The name of the sender, if that has one.
    pub sender: Option<UnixAddress>,
    /// A message was longer than the buffer, and its end is lost. Never of a stream.
    pub truncated: bool,
}

/// A receive of a message under way: a future of the message. Dropping it cancels the receive.
#[must_use = "the buffer is dropped when it comes back and nobody waits for it"]
#[derive(Debug)]
pub struct ReceivingMessage<B: Lendable>(Handle<Came<B>>);

/// The receive is over.
pub(crate) struct Came<B>(PhantomData<B>);

impl<B: Lendable> Awaited for Came<B> {
    type Key = Key;
    type Output = Result<ReceivedMessage<B>>;

    fn take(core: &Core, key: Key) -> Option<Self::Output> {
        take(core, key).map(Ok)
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().transfer(key).holder.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        transfer::let_go(core, key);
    }

    fn without_driver(error: Error) -> Self::Output {
        Err(error)
    }
}

fn take<B: Lendable>(core: &Core, key: Key) -> Option<ReceivedMessage<B>> {
    let (loan, result, beside, sender) = transfer::take_message(core, key)?;
    Some(ReceivedMessage {
        result,
        buffer: B::from_loan(loan),
        descriptors: beside.descriptors,
        sender,
        truncated: beside.truncated,
    })
}

impl<B: Lendable> ReceivingMessage<B> {
    /// Asks for it to end early. It ends with [`Error::Canceled`], or as usual if the request comes too late; the buffer
    /// comes back in both cases.
    pub fn cancel(&self) {
        if let Some(key) = self.0.key_here() {
            transfer::cancel(&self.0.driver().core, key);
        }
    }

    /// The message, once it is there.
    ///
    /// # Errors
    ///
    /// Returns itself until then: for ever if the driver is gone, which only awaiting tells.
    pub fn try_take(mut self) -> Result<ReceivedMessage<B>, Self> {
        self.0.take_by(take).ok_or(self)
    }
}

impl<B: Lendable> Cancel for ReceivingMessage<B> {
    fn cancel(&self) {
        self.cancel();
    }
}

impl<B: Lendable> Future for ReceivingMessage<B> {
    type Output = Result<ReceivedMessage<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<B: Lendable> Unpin for ReceivingMessage<B> {}

impl<B> fmt::Debug for Came<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Came")
    }
}
