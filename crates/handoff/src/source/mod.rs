//! Where lent bytes come from.

pub(crate) mod area;
pub(crate) mod arrivals;
pub(crate) mod file;
pub(crate) mod intake;
pub(crate) mod kernel;
pub(crate) mod memory;
pub(crate) mod pool;
pub(crate) mod received;
pub(crate) mod request;
pub(crate) mod rx_binding;
pub(crate) mod rx_queue;
pub(crate) mod shared;
pub(crate) mod socket;
pub(crate) mod window;
