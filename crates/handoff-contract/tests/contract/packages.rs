//! Each published package builds from its own content, and has its licences and its README.
//!
//! The long form of the tests (`cargo package`) proves that all of them build one after the other from
//! their archives.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[test]
fn a_package_stands_alone() {
    let found: Vec<_> = published().iter().flat_map(|package| faults(package)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_leaves_a_package_is_found() {
    let tree = tempfile::tempdir().expect("a directory");
    let package = tree.path().join("package");
    fs::create_dir_all(package.join("src")).expect("writes");
    let text = "include_str!(\"../kept\"), include_str!(\"../../lost\")";
    fs::write(package.join("src/lib.rs"), text).expect("writes");
    fs::write(package.join("build.rs"), "manifest.join(\"../bpf\")").expect("writes");
    let found = faults(&package);
    assert!(found.iter().any(|fault| fault.contains("../../lost")), "{found:?}");
    assert!(found.iter().any(|fault| fault.contains("../bpf")), "{found:?}");
    assert!(found.iter().any(|fault| fault.contains("LICENSE-MIT")), "{found:?}");
    assert!(!found.iter().any(|fault| fault.contains("kept")), "{found:?}");
}

/// The directories of the packages of this tree that may be published.
fn published() -> Vec<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    // Nothing in `publish` means: to any registry.
    let published = packages.iter().filter(|package| package["publish"].is_null());
    let directories: Vec<_> = published
        .map(|package| Path::new(package["manifest_path"].as_str().expect("a path")))
        .map(|manifest| manifest.parent().expect("is in a directory").to_owned())
        .collect();
    assert!(!directories.is_empty());
    directories
}

fn faults(package: &Path) -> Vec<String> {
    let mut faults: Vec<_> = ["LICENSE-MIT", "LICENSE-APACHE", "README.md"]
        .into_iter()
        .filter(|file| !package.join(file).is_file())
        .map(|file| format!("{} has no {file}", package.display()))
        .collect();
    let mut sources = sources(&package.join("src"));
    sources.push(package.join("build.rs"));
    for source in sources {
        let Ok(text) = fs::read_to_string(&source) else { continue };
        let directory = source.parent().expect("is in a directory");
        for path in text.split("\"../").skip(1).filter_map(|rest| rest.split('"').next()) {
            let path = format!("../{path}");
            if !lexically(&directory.join(&path)).starts_with(package) {
                faults.push(format!("{} names {path}, outside its package", source.display()));
            }
        }
    }
    faults
}

/// The path without `..`; packing turns links in a package into files, so none is followed.
fn lexically(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
    found
}
