//! Where lent bytes go.

pub(crate) mod file;
pub(crate) mod group;
pub(crate) mod socket;
