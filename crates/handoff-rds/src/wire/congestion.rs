//! The congestion map: which ports of a host have more queued than they read.

use std::fmt;

/// Bytes of a map on the wire: a bit for each port.
pub const MAP_LEN: usize = 8192;

/// A bit for each port of a host. Port p is bit p mod 8 of byte p / 8.
///
/// ```
/// use handoff_rds::wire::CongestionMap;
///
/// let mut map = CongestionMap::new();
/// map.set(4000, true);
/// let read = CongestionMap::from_bytes(map.as_bytes());
/// assert_eq!(read.ports().collect::<Vec<_>>(), [4000]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct CongestionMap {
    bits: Box<[u8; MAP_LEN]>,
}

impl CongestionMap {
    /// No port is congested.
    pub fn new() -> Self {
        Self::from_bytes(&[0; MAP_LEN])
    }

    /// The map that a frame carries; any bytes are one.
    pub fn from_bytes(bytes: &[u8; MAP_LEN]) -> Self {
        Self { bits: Box::new(*bytes) }
    }

    /// As it is on the wire.
    pub fn as_bytes(&self) -> &[u8; MAP_LEN] {
        &self.bits
    }

    /// Whether the port is congested.
    pub fn contains(&self, port: u16) -> bool {
        self.bits[usize::from(port >> 3)] & (1 << (port & 7)) != 0
    }

    /// Marks the port, or takes its mark away.
    pub fn set(&mut self, port: u16, congested: bool) {
        let byte = &mut self.bits[usize::from(port >> 3)];
        let bit = 1 << (port & 7);
        *byte = if congested { *byte | bit } else { *byte & !bit };
    }

    /// The congested ports, in order.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        let bytes = self.bits.iter().enumerate().filter(|(_, byte)| **byte != 0);
        bytes.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & (1 << bit) != 0).map(move |bit| (at * 8 + bit) as u16)
        })
    }
}

impl Default for CongestionMap {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CongestionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ports()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_port_is_the_bit_that_the_kernel_takes() {
        let mut map = CongestionMap::new();
        map.set(4000, true);
        map.set(65535, true);
        map.set(0, true);
        let bytes = map.as_bytes();
        assert_eq!((bytes[0], bytes[500], bytes[8191]), (1, 1, 0x80));
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 3);
        map.set(4000, false);
        assert!(!map.contains(4000));
        assert_eq!(map.ports().collect::<Vec<_>>(), [0, 65535]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ports: Vec<u16>) {
            let mut map = CongestionMap::new();
            ports.iter().for_each(|port| map.set(*port, true));
            let read = CongestionMap::from_bytes(map.as_bytes());
            prop_assert!(ports.iter().all(|port| read.contains(*port)));
            let mut sorted = ports;
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(read.ports().collect::<Vec<_>>(), sorted);
        }
    }
}
