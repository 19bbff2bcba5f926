//! Compiles `bpf/blk_request.h` twice: natively for the engines in user space, and as part of
//! `bpf/blk_loop.bpf.c` into the object that the library embeds.
//!
//! Needs a C compiler and clang; the headers of libbpf come with libbpf-cargo, the kernel's types
//! from `bpf/kernel.h`.

use std::env;
use std::fs;
use std::path::Path;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let sources = Path::new(&manifest).join("bpf");
    for source in [
        "blk_loop.bpf.c",
        "blk_request.h",
        "blk_intent.h",
        "blk_map.h",
        "blk.h",
        "blk_policy.h",
        "kernel.h",
    ] {
        println!("cargo::rerun-if-changed={}", sources.join(source).display());
    }
    println!("cargo::rerun-if-changed=src/native.c");
    cc::Build::new()
        .file("src/native.c")
        .include(&sources)
        .warnings_into_errors(true)
        .extra_warnings(true)
        .opt_level(2)
        .compile("handoff_blk");

    compile(&sources, &sources.join("blk_loop.bpf.c"));
    // The examples, and objects that must be refused, for the tests, also those of the command.
    println!("cargo::metadata=objects={}", env::var("OUT_DIR").expect("set by cargo"));
    for policies in ["policies", "tests/policies"] {
        let policies = Path::new(&manifest).join(policies);
        println!("cargo::rerun-if-changed={}", policies.display());
        for entry in fs::read_dir(&policies).expect("a directory of sources") {
            compile(&sources, &entry.expect("an entry").path());
        }
    }
}

/// Compiles `NAME.bpf.c` to `NAME.bpf.o` in the output directory.
fn compile(headers: &Path, source: &Path) {
    let name = source.file_name().expect("a source").to_string_lossy().replace(".bpf.c", ".bpf.o");
    let include = format!("-I{}", headers.display());
    if let Err(error) = SkeletonBuilder::new()
        .source(source)
        .obj(Path::new(&env::var("OUT_DIR").expect("set by cargo")).join(name))
        .clang_args(["-Wall", "-Werror", "-mcpu=v3", &include])
        .build()
    {
        let source = source.display();
        panic!("{source} does not build (is clang installed? make setup): {error:?}");
    }
}
