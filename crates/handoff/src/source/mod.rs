//! Where lent bytes come from.

pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod pool;
pub(crate) mod received;
pub(crate) mod shared;
pub(crate) mod socket;
