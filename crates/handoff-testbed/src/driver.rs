//! Drivers of the kernel that are modules.

use handoff_sys::kernel_module;

use crate::error::TopologyError;

/// Loads a driver by modprobe(8), with its parameters. A driver that is already loaded keeps its own.
///
/// # Errors
///
/// [`TopologyError::Unavailable`] with modprobe's reason.
pub fn load(driver: &str, parameters: &[&str]) -> Result<(), TopologyError> {
    kernel_module::load(driver, parameters).map_err(|reason| TopologyError::Unavailable {
        what: format!("the driver {driver}"),
        reason,
    })
}
