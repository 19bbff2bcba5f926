//! The same bytes in every file. Writes go to all, reads to one, by the place on the device so that
//! neighbours are read from the same. A leg that fails is out for good: it is neither read nor
//! written by this device again, and `state` tells which it was. The last one stays, and its errors
//! are the caller's.
//!
//! Which leg is out is kept with the device's state, which a restart of the machine ends: a mirror
//! that lost a leg is made anew from the leg that is good.

use super::Target;
use crate::life::{FILES, KIND_MIRROR, Map};
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
