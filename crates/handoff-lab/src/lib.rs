//! A stock Debian kernel in QEMU, and the network and disk topologies that tests and benches run on.

pub mod topology;
