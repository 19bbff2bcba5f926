//! Receiving into a buffer of the caller's choice, if wanted an exact length.
//!
//! Minimum kernel: any. Requests name registered memory by its slot from Linux 5.1 on (`READ_FIXED`), with
//! `RECV` from 7.2 on. Capability: none. Return signal: the completion. The kernel copies each byte once, into
//! the buffer.

use std::rc::Rc;

use super::Socket;
use crate::error::Error;
use crate::op::loan::{PayloadMut, Refused};
use crate::op::{Attached, Direction};
use crate::transfer::Transfer;

impl Socket {
    /// Receives what there is, up to the buffer's length in use: at least a byte, or 0 at the end of a
    /// stream. Of a vector, it fills the first buffer with room. A datagram socket gives one datagram, cut at
    /// the buffer's length.
    ///
    /// Wait for it, or [cancel](Transfer::cancel) it and wait. If you drop it, bytes that it had taken of a
    /// stream are lost.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when it is empty, too many operations are under way, or the socket has a
    /// receiver of any kind: two would each get parts of what comes.
    pub fn receive_into<B: PayloadMut>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        if buffer.extent().bytes == 0 {
            let error = Error::Invalid("a receive needs a buffer with room for a byte");
            return Err(Refused { buffer, error });
        }
        self.receive_by(Direction::Receive, buffer)
    }

    /// Receives from a stream until the buffer's length in use is filled, or the lengths of a vector's
    /// buffers, in order. A stream that ends before gives [`Error::StreamEnded`], which says how many bytes
    /// came.
    ///
    /// Cancelled, it says how many bytes it has, and the stream continues behind them; dropped, it loses them and
    /// all that follows. It cannot read bytes that a NIC has put into an [`RxQueue`](crate::RxQueue)'s memory
    /// (`EFAULT`): [`RxQueue::take`](crate::RxQueue::take) can.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when too many operations are under way, the socket has a receiver of any kind,
    /// or is no stream.
    pub fn receive_exact<B: PayloadMut>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        if !self.shared.stream {
            let error = Error::Invalid(
                "a datagram has an end of its own: receive it by receive_into; receive_exact is for streams",
            );
            return Err(Refused { buffer, error });
        }
        self.receive_by(Direction::ReceiveAll, buffer)
    }

    fn receive_by<B: PayloadMut>(
        &self,
        direction: Direction,
        buffer: B,
    ) -> Result<Transfer<B>, Refused<B>> {
        let reception = &self.shared.reception;
        if let Err(error) = reception.check_free().and_then(|()| reception.check_whole()) {
            return Err(Refused { buffer, error });
        }
        let socket = Attached::Socket(Rc::clone(&self.shared));
        Transfer::begin(&self.driver, socket, true, direction, None, buffer)
    }
}
