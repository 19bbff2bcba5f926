//! What users of the library may rely on. The compared texts are those of one compiler.

mod commands;
mod engines;
mod imports;
mod layers;
mod links;
mod names;
mod ownership;
mod packages;
mod public_api;

/// The compiler whose messages and documentation format are known; others differ.
const COMPILER: &str = "rustc 1.95.";

/// Why a text of the compiler cannot be compared here, if so.
fn other_compiler() -> Option<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    match std::process::Command::new(rustc).arg("--version").output() {
        Ok(output) => {
            let version = String::from_utf8_lossy(&output.stdout);
            let version = version.trim();
            (!version.starts_with(COMPILER))
                .then(|| format!("the text is that of {COMPILER}x, and this is {version}"))
        }
        Err(error) => Some(format!("no rustc: {error}")),
    }
}
