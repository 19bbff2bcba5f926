//! A device in one file or on one block device: linear with one part.

use super::linear::Linear;
use super::mapping::Target;
use crate::request::Map;
use crate::{Error, Spec};

pub(super) struct Loop;

impl Target for Loop {
    fn files(&self) -> std::ops::RangeInclusive<usize> {
        1..=1
    }

    fn lay_out(&self, spec: &Spec, sizes: &[u64], map: &mut Map) -> Result<u64, Error> {
        Linear.lay_out(spec, sizes, map)
    }
}
