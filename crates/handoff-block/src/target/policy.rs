//! A user's mapping ([`policy`](crate::policy)). It does not show how large the device is, nor how many
//! places a write goes to.

use super::mapping::Target;
use crate::request::{FILES, KIND_POLICY, Map};
use crate::{Error, Spec};

pub(super) struct Policy;

impl Target for Policy {
    fn files(&self) -> std::ops::RangeInclusive<usize> {
        1..=FILES
    }

    fn lay_out(&self, spec: &Spec, sizes: &[u64], map: &mut Map) -> Result<u64, Error> {
        map.kind = KIND_POLICY;
        map.copies = spec.copies;
        let all = sizes.iter().fold(0u64, |all, size| all.saturating_add(*size));
        Ok(spec.size.unwrap_or(all))
    }
}
