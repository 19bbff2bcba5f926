//! Imports stand in three groups: the standard library, other crates, and this crate; rustfmt sorts within each.

use syn::{Item, ItemUse, UseTree};

use crate::names::rust_files;

/// The group of an import.
fn group(import: &ItemUse) -> u8 {
    let first = match &import.tree {
        UseTree::Path(path) => path.ident.to_string(),
        UseTree::Name(name) => name.ident.to_string(),
        UseTree::Rename(rename) => rename.ident.to_string(),
        UseTree::Glob(_) | UseTree::Group(_) => return 1,
    };
    match first.as_str() {
        "alloc" | "core" | "std" if import.leading_colon.is_none() => 0,
        "crate" | "self" | "super" => 2,
        _ => 1,
    }
}

/// Whether the imports that follow each other stand by their groups, in these items and in the modules among them.
fn are_grouped(items: &[Item]) -> bool {
    let mut last = 0;
    items.iter().all(|item| match item {
        Item::Use(import) => {
            let before = std::mem::replace(&mut last, group(import));
            before <= last
        }
        Item::Mod(module) => {
            last = 0;
            module.content.as_ref().is_none_or(|(_, items)| are_grouped(items))
        }
        _ => {
            last = 0;
            true
        }
    })
}

#[test]
fn imports_are_grouped() {
    let wrong = rust_files().filter(|(_, file)| !are_grouped(&file.items));
    let wrong: Vec<_> = wrong.map(|(path, _)| path.display().to_string()).collect();
    assert!(
        wrong.is_empty(),
        "cargo +nightly fmt -- --config group_imports=StdExternalCrate, for\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_group_out_of_order_is_found() {
    let grouped = |text: &str| are_grouped(&syn::parse_file(text).expect("parses").items);
    assert!(grouped("use std::fs; use syn::Item; use crate::a; mod b; use std::io; use super::c;"));
    assert!(!grouped("use syn::Item; use std::fs;"));
    assert!(!grouped("use crate::a; use syn::Item;"));
    assert!(!grouped("mod tests { use super::*; use std::fs; }"));
}
