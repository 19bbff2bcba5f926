//! The protocol without I/O: one host's sockets, peers, lanes and messages as a state machine.
//!
//! A [`Host`] is one address. Whoever drives it (an engine over TCP, or a simulation) tells it what
//! happens, and asks what to do:
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
//! - a message is delivered at most once to each life of the receiver, and in order among those that
//!   one port sent to one peer; it is lost only if a peer restarts, or if it is cancelled, and then
//!   its completion says so;
//! - a payload comes back by exactly one completion, once the message's fate is known and every loan
//!   of it by [`Host::next_write`] was given back by [`Host::released`];
//! - a payload to be received is asked for with its length before its bytes are read, and only if the
//!   limits allow; where they don't, the connection is not read from until there is room
//!   ([`Expect::Nothing`]);
//! - what is queued, held and remembered is bounded by [`Limits`], whatever peers do.
//!
//! What goes beyond the kernel's protocol, in a way that kernels pass over: our congestion maps carry
//! the generation and the number of lanes as extension headers. A map is the first frame of every
//! connection, so a peer's restart is known before anything is sent to it again. Kernels tell theirs
//! by ping only, which must stand behind what is retransmitted; to those, as between kernels, messages
//! that were not acknowledged when they restarted may go twice, once to each life, and what they had sent
//! again may be delivered again, if their restart is known before it is read.

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

pub use host::{Delivered, Host, Message};
pub use limits::Limits;
pub use output::{Body, ConnectionId, Event, Expect, MessageId, Output, Reason, Write};
pub use role::Role;
pub use statistics::Statistics;
