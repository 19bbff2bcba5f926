use std::env;
use std::fs;

use super::package;

#[test]
fn the_header_in_the_tree_is_that_of_the_sources() {
    let configuration =
        cbindgen::Config::from_file(package().join("cbindgen.toml")).expect("is read");
    let bindings = cbindgen::Builder::new()
        .with_config(configuration)
        .with_src(package().join("src/lib.rs"))
        .generate()
        .expect("the sources are read");
    let mut header = Vec::new();
    bindings.write(&mut header);
    // What Rust calls safety is what C calls for.
    let header =
        String::from_utf8(header).expect("is text").replace(" # Safety\n\n ", " Requires: ");
    let file = package().join("include/handoff.h");
    if env::var_os("UPDATE_HEADER").is_some() {
        fs::write(&file, &header).expect("writes");
    }
    let there = fs::read_to_string(&file).expect("the header is in the tree");
    assert!(
        there == header,
        "include/handoff.h is not that of the sources: UPDATE_HEADER=1 cargo test -p handoff-capi"
    );
}
