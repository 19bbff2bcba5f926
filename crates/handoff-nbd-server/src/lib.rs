//! A server of network block devices (NBD), on drivers of the library.
//!
//! Contracts:
//! - a flush is answered when all that was answered before, on all connections and threads, is on the device. After a
//!   failed one, all later ones fail: nobody knows any more what is on the device;
//! - an export uses the page cache or direct I/O, never both for the same bytes;
//! - what a client can take is bounded, in memory, in requests, and in the time that it keeps others waiting. Where the
//!   memory that all share is in use, each connection goes on with a little of its own;
//! - a request that has begun is carried out to its end, also when its connection is over, and before the server lets a
//!   newer session of that client in.
//!
//! The way: [`Export`] is an open file, which threads share -> [`Server`], one for each thread, accepts -> `serving`
//! (requests, after `negotiating`) -> `reading`, `writing`, `other` (what they do) -> `disk` (the export on a thread's driver).
//!
//! Minimum kernel: 6.1 with a ring. Capability: none. Reads are lent from the page cache where the module `getbuf` is.

mod connection;
mod disk;
mod ending;
mod export;
mod extents;
mod input;
mod limits;
mod memory;
mod negotiating;
mod other;
mod overlay;
mod pieces;
mod ranges;
mod reading;
mod replies;
mod served;
mod server;
mod serving;
mod sessions;
mod start;
mod table;
mod thread;
mod writing;

pub use export::{Export, Io, OpenError, Spec};
pub use limits::Limits;
pub use served::Served;
pub use server::Server;
pub use sessions::Sessions;
