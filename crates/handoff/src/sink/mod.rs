//! Where lent bytes go.

pub(crate) mod file;
pub(crate) mod group;
pub(crate) mod lane;
pub(crate) mod socket;
