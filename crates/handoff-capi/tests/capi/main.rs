//! The C interface as C sees it: the header in the tree is the one that the sources give, and programs in C11 and
//! C++17, built by every compiler that is there, under the address sanitizer too, do what they should.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod crowd;
mod header;
mod lab;
mod programs;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that must end well; its output is shown if it does not.
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The static library, which Cargo builds beside the tests; the newest, where several builds left theirs.
fn library() -> PathBuf {
    let program = env::current_exe().expect("has a path");
    let beside = sources(program.parent().expect("is in a directory"), "a").into_iter();
    let ours = beside.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libhandoff_capi-"))
    });
    let built =
        |path: &PathBuf| fs::metadata(path).and_then(|it| it.modified()).expect("is a file");
    ours.max_by_key(built).expect("Cargo built the static library")
}

fn sources(directory: &Path, kind: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(directory)
        .expect("can be read")
        .map(|entry| entry.expect("can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == kind))
        .collect();
    found.sort();
    found
}
