//! Memory of this process, and who owns which bytes of it.

mod append;
pub(crate) mod backing;
mod chunk;
mod frozen;
mod io_buf;
#[cfg(all(test, handoff_loom))]
mod models;
mod piece;
mod pool;
mod range;
pub(crate) mod region;
pub(crate) mod registrations;
pub(crate) mod shared;
pub(crate) mod view;

pub use append::Append;
pub use backing::Memory;
pub(crate) use backing::{Backed, Backing, SLOT_SPAN};
pub use frozen::Frozen;
pub(crate) use io_buf::LentOwner;
pub use io_buf::{IoBuf, IoBufMut};
pub(crate) use piece::{AddressRange, Piece};
pub use pool::{BufferPool, GetBuffer};
pub(crate) use range::within;
pub use region::{Buffer, Pages, Region};
pub(crate) use region::{map, own, page_size};
pub use registrations::Pinning;
pub(crate) use registrations::{Departed, Keeping, Registration};
pub use shared::{SharedBuffer, SharedRegion};
pub use view::{View, ViewMut};
