//! The public API matches `docs/public-api.txt`, so that a change of it is seen. Items hidden from the
//! documentation are there too: hidden is not private.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// If set, rewrites the file.
const UPDATE: &str = "UPDATE_PUBLIC_API";

/// Documentation as JSON is unstable, which the compiler must be told. Only the documentation tool is told:
/// otherwise Cargo would rebuild everything.
const RUSTDOC: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

#[test]
fn the_public_api_is_the_checked_in_one() {
    if let Some(reason) = crate::other_compiler() {
        return println!("HANDOFF-SKIP the_public_api_is_the_checked_in_one: {reason}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = tempfile::tempdir().unwrap();
    let rustdoc = directory.path().join("rustdoc");
    fs::write(&rustdoc, RUSTDOC).unwrap();
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)).unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["rustdoc", "--quiet", "--package=handoff-io", "--lib", "--all-features"])
        .args(["--", "-Zunstable-options", "--output-format=json", "--document-hidden-items"])
        .env("RUSTDOC", &rustdoc)
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let api = public_api::Builder::from_rustdoc_json(target.join("doc/handoff.json"))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .unwrap();
    let items = api.items().map(|item| format!("{item}\n"));
    // The guides are pages, and nothing that a program can name.
    let text: String = items.filter(|item| !item.starts_with("pub mod handoff::guide")).collect();
    let checked_in = root.join("docs/public-api.txt");
    if std::env::var_os(UPDATE).is_some() {
        return fs::write(checked_in, text).unwrap();
    }
    let expected = fs::read_to_string(checked_in).unwrap();
    let missing = |from: &str, to: &str, sign| -> String {
        let lines: Vec<&str> = to.lines().collect();
        from.lines()
            .filter(|line| !lines.contains(line))
            .map(|line| format!("{sign}{line}\n"))
            .collect()
    };
    assert!(
        text == expected,
        "the public API changed; if that is meant, run this with {UPDATE}=1:\n{}{}",
        missing(&expected, &text, '-'),
        missing(&text, &expected, '+'),
    );
}
