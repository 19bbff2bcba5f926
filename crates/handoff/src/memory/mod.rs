//! Memory of this process, and who owns which bytes of it.

pub(crate) mod backing;
pub(crate) mod region;
pub(crate) mod shared;
pub(crate) mod view;

pub use backing::Memory;
pub(crate) use backing::{AddressRange, Backed, Backing, Piece, Registration, SLOT_SPAN};
pub use region::{Buffer, Pages, Region};
pub(crate) use region::{map, own, page_size};
pub use shared::{SharedBuffer, SharedRegion};
pub use view::View;
