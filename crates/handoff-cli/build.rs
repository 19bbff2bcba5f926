//! Tells the tests where the BPF objects of `handoff-block` are.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let objects = env::var("DEP_HANDOFF_BLK_OBJECTS").expect("told by handoff-block's build");
    println!("cargo::rustc-env=BLK_OBJECTS={objects}");
}
