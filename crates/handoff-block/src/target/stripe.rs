//! Chunks distributed over several files in turn. Each file is used for as many whole chunks as the
//! smallest has.

use super::mapping::Target;
use crate::request::{FILES, KIND_STRIPE, Map};
use crate::{Error, Spec};

pub(super) struct Stripe;

impl Target for Stripe {
    fn files(&self) -> std::ops::RangeInclusive<usize> {
        2..=FILES
    }

    fn lay_out(&self, spec: &Spec, sizes: &[u64], map: &mut Map) -> Result<u64, Error> {
        map.kind = KIND_STRIPE;
        let smallest = sizes.iter().min().copied().unwrap_or_default();
        let used = smallest - smallest % spec.chunk;
        if used == 0 {
            return Err(Error::invalid(format!(
                "a file of {smallest} bytes is less than a chunk of {}",
                spec.chunk
            )));
        }
        used.checked_mul(sizes.len() as u64)
            .ok_or_else(|| Error::invalid("the files are too large together"))
    }
}
