//! Compiles `bpf/meter.bpf.c` into the object that the library embeds.
//!
//! Needs clang; the headers of libbpf come with libbpf-cargo, the kernel's types from
//! `bpf/kernel.h`, so nothing depends on the machine that builds.

use std::env;
use std::path::Path;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let sources = Path::new(&manifest).join("bpf");
    for source in ["meter.bpf.c", "meter.h", "kernel.h"] {
        println!("cargo::rerun-if-changed={}", sources.join(source).display());
    }
    let object = Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("meter.bpf.o");
    if let Err(error) = SkeletonBuilder::new()
        .source(sources.join("meter.bpf.c"))
        .obj(object)
        .clang_args(["-Wall", "-Werror"])
        .build()
    {
        panic!("bpf/meter.bpf.c does not build (is clang installed? make setup): {error:?}");
    }
}
