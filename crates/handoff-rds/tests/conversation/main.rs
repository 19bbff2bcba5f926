//! A host and a peer of which every frame is written out: what the protocol's rules say in detail.

mod congestion;
mod hostile;
mod limits;
mod numbers;
mod opening;
mod peer;
