//! A device whose bytes are nowhere: writes are forgotten, and reads show what the request's memory held
//! before. It shows what a request costs without I/O. A reader of such a device may see pages that others
//! have freed, so its node belongs to root.

use super::Target;
use crate::life::{KIND_NULL, Map};
use crate::{Error, Spec};

const DEFAULT_SIZE: u64 = 1 << 30;

pub(super) struct Null;

impl Target for Null {
    fn files(&self) -> std::ops::RangeInclusive<usize> {
        0..=0
    }

    fn lay_out(&self, spec: &Spec, _sizes: &[u64], map: &mut Map) -> Result<u64, Error> {
        map.kind = KIND_NULL;
        Ok(spec.size.unwrap_or(DEFAULT_SIZE))
    }
}
