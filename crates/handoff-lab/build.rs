//! Builds the guest's init (`lab/init`): a static program without dependencies. Embeds the sources
//! of the kernel modules (`kmod/`).
//!
//! The init runs from the initramfs, where there is no C library, so it cannot be an ordinary target of
//! the workspace: those are linked dynamically.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const SOURCES: [&str; 7] =
    ["main.rs", "agent.rs", "proc.rs", "system.rs", "tasks.rs", "tracks.rs", "wire.rs"];

fn main() {
    embed_modules();
    build_init();
}

/// Writes `OURS`: the modules in kmod/, each a directory with a Kbuild, and the files of each.
fn embed_modules() {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let place = Path::new(&manifest).join("kmod");
    let mut text = "const OURS: &[(&str, &[(&str, &str)])] = &[\n".to_owned();
    for directory in entries(&place).into_iter().filter(|place| place.join("Kbuild").exists()) {
        println!("cargo::rerun-if-changed={}", directory.display());
        text += &format!("    ({:?}, &[\n", name_of(&directory));
        for file in entries(&directory) {
            // What somebody has built there does not belong to the sources.
            let source = ["c", "h"].iter().any(|kind| file.extension() == Some(kind.as_ref()));
            if source || name_of(&file) == "Kbuild" {
                text += &format!("        ({:?}, include_str!({file:?})),\n", name_of(&file));
            }
        }
        text += "    ]),\n";
    }
    text += "];\n";
    let out = Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("kmod.rs");
    fs::write(out, text).expect("OUT_DIR is writable");
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("kmod/ and what is in it can be read");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("can be read").path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn build_init() {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let sources = Path::new(&manifest).join("lab/init");
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
