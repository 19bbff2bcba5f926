//! A copy by reliable datagrams: the frames of [`wire`](super::wire), cut into messages.
//!
//! Contracts:
//! - the receiver has a port and the sender finds it; both say hello again and again while they have
//!   nothing else to say, so that a peer that is gone is noticed, which RDS itself does not tell;
//! - the receiver's hellos say how much it has taken: no buffer is used again before, since lent pages
//!   are shared with a receiver on the same host; and no more is under way than its port holds;
//! - the checksum is always compared;
//! - messages of others than the peer are turned away.
//!
//! A message is a hello, or a part of the stream of frames; a piece of payload is one by itself, so that
//! it is sent from where it is.

mod greeting;
mod line;
mod receiving;
mod sending;

pub(super) use receiving::receive;
pub(super) use sending::send;
