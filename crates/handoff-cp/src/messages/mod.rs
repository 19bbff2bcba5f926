//! A copy by reliable datagrams: the frames of [`wire`](crate::wire), cut into messages.
//!
//! Contracts:
//! - the receiver has a port and the sender finds it; both keep saying hello while they have nothing else
//!   to say, so that they notice a peer that is gone, which RDS itself does not report;
//! - the receiver's hellos say how much it has taken: no buffer is reused before, since lent pages are
//!   shared with a receiver on the same host; and no more is under way than its port holds;
//! - the checksum is always compared;
//! - messages of anybody but the peer are turned away; they get a limited number of answers in a transfer;
//! - once the file gets its name, neither a signal nor the peer changes the result.
//!
//! A message is a hello, or a part of the stream of frames; a piece of payload is a message by itself, so
//! it is sent in place.

mod handshake;
mod line;
mod receiving;
mod sending;

pub(crate) use receiving::receive;
pub(crate) use sending::send;
