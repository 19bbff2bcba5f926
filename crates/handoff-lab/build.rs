//! Builds the guest's init (`lab/init`): a static program without dependencies.
//!
//! It runs from the initramfs, where there is no C library, so it cannot be an ordinary target of
//! the workspace: those are linked dynamically.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const SOURCES: [&str; 4] = ["main.rs", "agent.rs", "system.rs", "wire.rs"];

fn main() {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let sources = Path::new(&manifest).join("../../lab/init");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", sources.join(source).display());
    }
    let out = Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("init");
    let target = env::var("TARGET").expect("set by cargo");
    if target != "x86_64-unknown-linux-gnu" {
        // The lab says at run time that it needs another machine; the library still builds.
        fs::write(&out, []).expect("OUT_DIR is writable");
        return;
    }
    let status = Command::new(env::var("RUSTC").expect("set by cargo"))
        .args(["--edition", "2024", "--crate-name", "init", "--crate-type", "bin"])
        .args(["--target", &target, "-C", "target-feature=+crt-static"])
        .args(["-C", "opt-level=s", "-C", "lto=fat", "-C", "panic=abort", "-C", "strip=symbols"])
        .arg("-o")
        .arg(&out)
        .arg(sources.join("main.rs"))
        .status()
        .expect("rustc can be started");
    assert!(status.success(), "the guest's init does not build (is libc6-dev installed?)");
}
