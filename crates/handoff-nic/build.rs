//! Compiles `bpf/lease.bpf.c` into the object that the library embeds.
//!
//! Needs clang; the headers of libbpf come with libbpf-cargo, the kernel's types from
//! `bpf/kernel.h`, so nothing depends on the machine that builds.

use std::env;
use std::path::Path;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let sources = Path::new(&manifest).join("bpf");
    for source in ["lease.bpf.c", "lease.h", "kernel.h"] {
        println!("cargo::rerun-if-changed={}", sources.join(source).display());
    }
    let object = Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("lease.bpf.o");
    if let Err(error) = SkeletonBuilder::new()
        .source(sources.join("lease.bpf.c"))
        .obj(object)
        .clang_args(["-Wall", "-Werror", "-mcpu=v3"])
        .build()
    {
        panic!("bpf/lease.bpf.c does not build (is clang installed? make setup): {error:?}");
    }
}
