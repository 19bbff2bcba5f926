//! Several files one after the other.

use super::mapping::Target;
use crate::request::{FILES, KIND_LINEAR, Map};
use crate::{Error, Spec};

pub(super) struct Linear;

impl Target for Linear {
    fn files(&self) -> std::ops::RangeInclusive<usize> {
        1..=FILES
    }

    fn lay_out(&self, _spec: &Spec, sizes: &[u64], map: &mut Map) -> Result<u64, Error> {
        map.kind = KIND_LINEAR;
        let mut end = 0u64;
        for (size, place) in sizes.iter().zip(&mut map.end) {
            end = end
                .checked_add(*size)
                .ok_or_else(|| Error::invalid("the files are too large together"))?;
            *place = end;
        }
        Ok(end)
    }
}
