//! TCP peers on the command line, and the NIC that they come by.

pub mod address;
pub(crate) mod arrived;
pub(crate) mod nic;
pub(crate) mod path;
pub(crate) mod patience;
pub(crate) mod reach;
