//! What a mapping does.

use crate::request::Map;
use crate::{Error, Spec};

/// A mapping.
pub(crate) trait Target {
    /// How many files it takes.
    fn files(&self) -> std::ops::RangeInclusive<usize>;

    /// Fills the map, which has the sizes of the files, and returns the bytes of the device.
    fn lay_out(&self, spec: &Spec, sizes: &[u64], map: &mut Map) -> Result<u64, Error>;
}
