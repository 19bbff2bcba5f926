//! Who answers for packages.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::native::lab::lifecycle::ROOT;

#[test]
fn packing_without_an_address_is_warned_of() {
    // Packing ends where debhelper is missing.
    let tools = tempfile::tempdir().expect("a directory");
    symlink("/bin/hostname", tools.path().join("hostname")).expect("links");
    for (address, warned) in [(None, true), (Some("me@example.org"), false)] {
        let mut packing = Command::new("scripts/packages");
        packing
            .arg(tools.path())
            .current_dir(ROOT)
            .env("PATH", tools.path())
            .env_remove("DEBEMAIL");
        let output = packing.envs(address.map(|it| ("DEBEMAIL", it))).output().expect("starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert_eq!(errors.contains("no DEBEMAIL"), warned, "{errors}");
    }
}
