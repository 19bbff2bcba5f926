//! A device whose bytes are nowhere: writes are forgotten, and reads are zeroes. A write shows what a request
//! costs without I/O. A read is one of `/dev/zero`, since the request's memory, perhaps a page that another has
//! freed, would otherwise go to the reader as it is.

use super::mapping::Target;
use crate::request::{KIND_NULL, Map};
use crate::{Error, Spec};

const DEFAULT_SIZE: u64 = 1 << 30;

pub(super) struct Null;

impl Target for Null {
    fn files(&self) -> std::ops::RangeInclusive<usize> {
        0..=0
    }

    fn lay_out(&self, spec: &Spec, _sizes: &[u64], map: &mut Map) -> Result<u64, Error> {
        let size = spec.size.unwrap_or(DEFAULT_SIZE);
        map.kind = KIND_NULL;
        map.files = 1;
        map.size[0] = size;
        Ok(size)
    }
}
