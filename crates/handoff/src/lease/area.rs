//! How large the area of an rx queue has to be.
//!
//! TCP may keep as much as its receive buffers hold in the queues of sockets; most of it out of order if
//! something was lost. If that takes every chunk, the retransmission finds none, and the connections of the
//! queue stall for good. So an area has chunks for the NIC's ring, for the cache of the queue's page pool,
//! and for every receive buffer at its largest.

use std::fs;

use handoff_sys::ethtool as abi;
use handoff_sys::netlink::{Attributes, Generic, Netlink};
use netlink_packet_core::NLM_F_ACK;

/// Chunks that a page pool takes at once.
pub(super) const AT_ONCE: usize = 64;

/// Chunks that a page pool keeps: its cache, and what it takes at once.
const CACHE: usize = 128 + AT_ONCE;

/// Entries of each rx ring of an interface; 0 where its driver doesn't say.
pub(super) fn ring_entries(interface: &str) -> usize {
    let asked = || -> std::io::Result<Option<u32>> {
        let mut kernel = Netlink::generic()?;
        let family = kernel.family(abi::GENL_NAME)?;
        let header = Attributes::new().text(abi::A_HEADER_DEV_NAME, interface);
        let attributes = Attributes::new().nest(abi::A_HEADER, &header);
        let answers =
            kernel.ask(Generic::new(family, abi::MSG_RINGS_GET, attributes), NLM_F_ACK)?;
        Ok(answers.iter().find_map(|answer| answer.attributes.number(abi::A_RINGS_RX)))
    };
    asked().ok().flatten().unwrap_or(0) as usize
}

/// The largest size of a socket's TCP receive buffer, in bytes, with the memory around payload.
pub(super) fn largest_receive_buffer() -> usize {
    let limits = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default();
    limits.split_whitespace().nth(2).and_then(|most| most.parse().ok()).unwrap_or(6 << 20)
}

/// Chunks for a NIC's ring of so many entries and for the cache of the page pool; 0 without a NIC.
pub(super) fn reserve(ring: Option<usize>) -> usize {
    ring.map_or(0, |entries| entries + CACHE)
}

/// Chunks for a NIC's ring, if there is one, and for so many connections.
pub(super) fn chunks(ring: Option<usize>, connections: usize, chunk: usize) -> usize {
    reserve(ring) + connections.saturating_mul(largest_receive_buffer().div_ceil(chunk))
}
