//! The same bytes in every file. Writes go to all, reads to one, chosen by the place on the device, so that
//! neighbours are read from the same file. A leg that fails is out for good: this device neither reads nor
//! writes it again, and `state` names it. The last leg stays, and its errors reach the caller.
//!
//! Failed legs are recorded in the device's state, which a restart of the machine ends. Legs with records say which of
//! them are right after it ([`crate::mirror`]).

use super::mapping::Target;
use crate::request::{FILES, KIND_MIRROR, Map};
use crate::{Error, Spec};

pub(super) struct Mirror;

impl Target for Mirror {
    fn files(&self) -> std::ops::RangeInclusive<usize> {
        2..=FILES
    }

    fn lay_out(&self, _spec: &Spec, sizes: &[u64], map: &mut Map) -> Result<u64, Error> {
        map.kind = KIND_MIRROR;
        map.copies = sizes.len() as u32;
        Ok(sizes.iter().min().copied().unwrap_or_default())
    }
}
