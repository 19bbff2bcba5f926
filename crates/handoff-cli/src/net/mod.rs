//! TCP peers as the command line names them: addresses, waiting, connecting.

pub mod address;
pub(crate) mod patience;
pub(crate) mod reach;
