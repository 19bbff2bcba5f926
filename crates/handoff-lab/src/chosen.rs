//! The kernel that the user chose: a stock one, or one that is built here with sanitizers.

use crate::cache::Cache;
use crate::error::Result;
use crate::kernel::{BACKPORTS, Kernel, KernelChoice};
use crate::sanitizer;
use crate::tool::StopFlag;

impl Kernel {
    /// The chosen kernel; fetched now if it is missing from the cache.
    ///
    /// # Errors
    ///
    /// If the archive has none of the series, or cannot be reached.
    pub fn of(choice: &KernelChoice, cache: &Cache, stop: &StopFlag) -> Result<Self> {
        let place = match choice {
            KernelChoice::Series(series) => (BACKPORTS, series.as_str()),
            KernelChoice::Bookworm => ("bookworm", "6.1"),
            KernelChoice::Kasan => return sanitizer::kernel(cache, stop),
        };
        Self::stock(&choice.to_string(), place, cache, stop)
    }
}
