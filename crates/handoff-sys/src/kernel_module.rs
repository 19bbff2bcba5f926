//! Loading kernel modules, by modprobe(8).
//!
//! Capability: CAP_SYS_MODULE, for a module that is not loaded yet.

use std::process::Command;

/// Loads a module with its parameters. One that is loaded already keeps its own.
///
/// # Errors
///
/// The reason that modprobe(8) gives, or why it does not run.
pub fn load(module: &str, parameters: &[&str]) -> Result<(), String> {
    let output = Command::new("modprobe").arg(module).args(parameters).output();
    let output = output.map_err(|error| format!("modprobe: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
