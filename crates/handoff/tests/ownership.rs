//! Programs that break a rule of ownership do not compile, each for the reason that is meant.

#[allow(dead_code, reason = "each test program uses a part")]
mod traffic;

/// The compiler whose messages are kept beside the programs; others word them otherwise.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn broken_rules_do_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match version {
        Ok(version) if version.starts_with(COMPILER) => {
            trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
        }
        Ok(version) => traffic::skip(
            "broken_rules_do_not_compile",
            &format!("its messages are those of {COMPILER}x, and this is {version}"),
        ),
        Err(error) => traffic::skip("broken_rules_do_not_compile", &format!("no rustc: {error}")),
    }
}
