//! The protocol without I/O: one host's sockets, peers, lanes and messages as a state machine.
//!
//! A [`Host`] is one address. Its driver (an engine over TCP, or a simulation) reports events to it, and
//! asks what to do:
//!
//! | in | out |
//! |---|---|
//! | [`Host::accepted`], [`Host::accepted_all`], [`Host::connected`], [`Host::closed`] | [`Output::Connect`], [`Output::Accept`], [`Output::Finish`], [`Output::Drain`], [`Output::Close`] |
//! | [`Host::header`], then what [`Host::expect`] asks for; [`Host::caught_up`] | [`Host::receive`], [`Output::Resume`], [`Output::CatchUp`] |
//! | [`Host::send`] | [`Output::Ready`], then [`Host::next_write`] |
//! | [`Host::acknowledged`], [`Host::released`] | completions |
//! | [`Host::advance`] | [`Host::deadline`] |
//!
//! Contracts:
//! - a message is delivered at most once to each incarnation of the receiver, and in order among those that one
//!   port sent to one peer. It is lost only if a peer restarts, or if it is cancelled, and then its
//!   completion says so;
//! - a payload comes back by exactly one completion, once the message's fate is known and
//!   [`Host::released`] has returned every loan of it by [`Host::next_write`];
//! - the host asks for a payload, with its length, before its bytes are read, and only if the limits allow;
//!   otherwise the connection is not read until there is room ([`Expect::Nothing`]);
//! - [`Limits`] bounds everything queued, held and remembered, whatever peers do.
//!
//! One thing goes beyond the kernel's protocol, and kernels ignore it: our congestion maps carry the
//! generation and the number of lanes as extension headers. A map is the first frame of every connection,
//! so a peer's restart is known before anything is sent to it again. Kernels report theirs only by ping,
//! which must stand behind what is retransmitted. So with a kernel, as between kernels, unacknowledged
//! messages may go twice when it restarted, once to each incarnation; and messages that it resent may be delivered
//! again, if we learn of its restart before we read them.

mod arriving;
mod congestion;
mod connecting;
mod host;
mod limits;
mod output;
mod peer;
mod receiving;
mod restarting;
mod role;
mod sending;
mod statistics;
mod waiting;

pub use host::{Delivered, Host, Message};
pub use limits::Limits;
pub use output::{Body, ConnectionId, Event, Expect, MessageId, Output, Reason, Write};
pub use role::Role;
pub use statistics::Statistics;
