//! The netem queueing discipline: it delays or drops packets.
//!
//! Minimum kernel: 4.15 (64-bit delays), with sch_netem, which some kernels lack.

use std::time::Duration;

use super::rtnetlink::Rtnetlink;
use crate::error::TopologyError;

const TCA_NETEM_LATENCY64: u16 = 10;

/// What to do to the packets of a device on their way out.
///
/// ```no_run
/// use std::time::Duration;
/// use handoff_testbed::{Netem, Pair, TopologyError};
///
/// # fn main() -> Result<(), TopologyError> {
/// let pair = Pair::new(1500)?;
/// let slow = Netem { delay: Duration::from_millis(20), loss: 0.01, ..Netem::default() };
/// pair.left.set_netem(&slow)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Netem {
    /// How long each packet is held.
    pub delay: Duration,
    /// Share of dropped packets, 0 to 1.
    pub loss: f64,
    /// How many packets may be held at a time; further ones are dropped.
    pub limit: u32,
}

impl Default for Netem {
    fn default() -> Self {
        Self { delay: Duration::ZERO, loss: 0.0, limit: 1_000 }
    }
}

impl Netem {
    /// Makes this the root discipline of a device of the calling thread's namespace.
    pub(super) fn apply(&self, device: &str) -> Result<(), TopologyError> {
        Rtnetlink::open()?.set_discipline(device, "netem", Some(self.options()))
    }

    /// `struct tc_netem_qopt` (latency, limit, loss, gap, duplicate, jitter; all u32), then attributes.
    /// The latency field counts scheduler ticks, so we use the attribute in nanoseconds, which overrides
    /// it.
    fn options(&self) -> Vec<u8> {
        let loss = (self.loss.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        let delay = i64::try_from(self.delay.as_nanos()).unwrap_or(i64::MAX);
        let attribute_len = 4 + size_of_val(&delay) as u16;
        let mut bytes = Vec::with_capacity(36);
        for field in [0, self.limit, loss, 0, 0, 0] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(attribute_len.to_ne_bytes());
        bytes.extend(TCA_NETEM_LATENCY64.to_ne_bytes());
        bytes.extend(delay.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_the_kernels_structure_and_one_attribute() {
        let netem = Netem { delay: Duration::from_millis(5), loss: 0.5, limit: 77 };
        let bytes = netem.options();
        assert_eq!(bytes.len(), 36);
        let word = |n: usize| u32::from_ne_bytes(bytes[n * 4..n * 4 + 4].try_into().unwrap());
        assert_eq!(word(0), 0);
        assert_eq!(word(1), 77);
        assert_eq!(word(2), u32::MAX / 2);
        assert_eq!(u16::from_ne_bytes(bytes[24..26].try_into().unwrap()), 12);
        assert_eq!(u16::from_ne_bytes(bytes[26..28].try_into().unwrap()), TCA_NETEM_LATENCY64);
        assert_eq!(i64::from_ne_bytes(bytes[28..36].try_into().unwrap()), 5_000_000);
    }
}
