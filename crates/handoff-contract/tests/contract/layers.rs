//! Modules import downwards only, in the order that `layers.md` gives for their crate.

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sources::{Crate, ModulePath};

/// The order of a crate's modules: the layers from the top to the bottom.
struct Layers(Vec<Vec<ModulePath>>);

impl Layers {
    /// One line for each layer: its modules, and behind two spaces their purpose.
    fn parse(table: &str) -> Self {
        let modules = |line: &str| {
            let names = line.split("  ").next().unwrap_or_default();
            names
                .split_whitespace()
                .map(|name| name.split("::").map(str::to_owned).collect())
                .collect()
        };
        Self(table.lines().map(modules).collect())
    }

    fn listed(&self) -> impl Iterator<Item = &ModulePath> {
        self.0.iter().flatten()
    }

    /// The listed module that a module is or belongs to, and the number of its layer. The crate's root is
    /// above all.
    fn place<'a>(&'a self, module: &[String]) -> Option<(&'a [String], usize)> {
        if module.is_empty() {
            return Some((&[], 0));
        }
        let numbered =
            (1..).zip(&self.0).flat_map(|(at, line)| line.iter().map(move |it| (it, at)));
        let around = numbered.filter(|(listed, _)| module.starts_with(listed));
        around.max_by_key(|(listed, _)| listed.len()).map(|(listed, at)| (listed.as_slice(), at))
    }

    /// What is wrong with the modules of a crate, or with the table; a line for each fault, with the file's path below `root`.
    fn faults(&self, found: &Crate, root: &Path) -> Vec<String> {
        let mut faults = Vec::new();
        let modules: BTreeSet<_> = found.modules().collect();
        let mut before = BTreeSet::new();
        for listed in self.listed() {
            if !modules.contains(listed) {
                faults.push(format!("the table lists `{}`, which is no module", listed.join("::")));
            }
            if !before.insert(listed) {
                faults.push(format!("the table lists `{}` twice", listed.join("::")));
            }
        }
        for module in modules {
            if self.place(module).is_none() {
                faults.push(format!("the table does not list `{}`", module.join("::")));
            }
        }
        for import in found.imports() {
            let (Some((from, from_layer)), Some((to, to_layer))) =
                (self.place(&import.from), self.place(&import.to))
            else {
                continue;
            };
            if from != to && to_layer <= from_layer {
                let name = |module: &[String]| match module {
                    [] => "the crate's root".to_owned(),
                    path => format!("`{}`", path.join("::")),
                };
                let file = import.file.strip_prefix(root).unwrap_or(&import.file);
                faults.push(format!(
                    "{}:{}: `{}`: {} stands {} {}",
                    file.display(),
                    import.line,
                    import.text,
                    name(to),
                    if to_layer == from_layer { "beside" } else { "above" },
                    name(from),
                ));
            }
        }
        faults
    }
}

/// The tables of a page, by the directory of the crate that they are about.
fn tables(page: &str) -> BTreeMap<String, Layers> {
    let blocks = page.split("\n```layers ").skip(1);
    let table = |block: &str| {
        let (directory, rest) = block.split_once('\n').expect("a table has lines");
        let (table, _) = rest.split_once("\n```").expect("a table ends");
        (directory.trim().to_owned(), Layers::parse(table))
    };
    blocks.map(table).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the tree").to_owned()
}

/// The crates of the tree that have modules.
fn crates() -> BTreeMap<String, Crate> {
    let libraries = fs::read_dir(root().join("crates")).expect("the crates");
    let libraries = libraries.map(|entry| {
        let name = entry.expect("an entry").file_name();
        format!("crates/{}", name.to_string_lossy())
    });
    let all = libraries.chain(["bench", "xtask", "xtask/src/runner"].map(str::to_owned));
    let read = |directory: String| {
        let files = ["src/lib.rs", "src/main.rs", "lib.rs"].iter();
        let file = files.map(|name| root().join(&directory).join(name)).find(|it| it.exists());
        let found = Crate::read(&file?);
        (found.modules().count() > 1).then_some((directory, found))
    };
    all.filter_map(read).collect()
}

#[test]
fn modules_import_downwards_only() {
    let tables = tables(include_str!("layers.md"));
    let crates = crates();
    let mut faults = Vec::new();
    for directory in tables.keys().filter(|directory| !crates.contains_key(*directory)) {
        faults.push(format!("{directory}: layers.md has layers of a crate that is not there"));
    }
    for (directory, found) in &crates {
        match tables.get(directory) {
            Some(layers) => {
                let of_crate = layers.faults(found, &root());
                if !of_crate.is_empty() {
                    faults.push(format!("{directory}:\n  {}", of_crate.join("\n  ")));
                }
            }
            None => faults.push(format!("{directory}: layers.md has no layers of it")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What measures and tests the product.
const WORKSHOP: [&str; 4] = ["handoff-bench", "handoff-lab", "handoff-report", "handoff-workshop"];

/// The packages of this tree that a package is built of, apart from its tests, by their directories.
fn built_of(package: &str, directories: &BTreeMap<String, PathBuf>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![package.to_owned()];
    while let Some(package) = next.pop() {
        let directory = &directories[&package];
        if !found.insert(package) {
            continue;
        }
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("a manifest");
        let sections = manifest.split("\n[").filter(|section| section.starts_with("dependencies]"));
        let names =
            sections.flat_map(str::lines).filter_map(|line| line.split(['.', ' ', '=']).next());
        // The library goes by another name in its users.
        let names = names.map(|name| if name == "handoff" { "handoff-io" } else { name });
        next.extend(names.filter(|name| directories.contains_key(*name)).map(str::to_owned));
    }
    found
}

#[test]
fn the_product_uses_neither_the_benches_nor_the_lab() {
    let directories = fs::read_dir(root().join("crates")).expect("the crates");
    let directories =
        directories.map(|entry| entry.expect("an entry").path()).chain([root().join("bench")]);
    let directories: BTreeMap<_, _> =
        directories.map(|directory| (name_in(&directory), directory)).collect();
    let of_product = built_of("handoff-cli", &directories);
    for package in ["handoff-cli", "handoff-command", "handoff-io", "handoff-meter"] {
        assert!(of_product.contains(package), "{package}: {of_product:?}");
    }
    for package in WORKSHOP {
        assert!(!of_product.contains(package), "{of_product:?}");
        assert!(built_of("handoff-workshop", &directories).contains(package));
    }
}

/// The name of the package in a directory.
fn name_in(directory: &Path) -> String {
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("a manifest");
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""));
    name.expect("a name").trim_end_matches('"').to_owned()
}

mod tests {
    use super::*;

    const TABLE: &str = "run\nsend receive  what is measured\nbed::deep\nbed  below";

    /// The faults of an invented crate with these `send.rs` and `bed.rs`.
    fn faults(table: &str, send: &str, bed: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = directory.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            file
        };
        let root = write(
            "lib.rs",
            "mod run; mod send; mod receive; mod bed;
             pub use run::Run; pub use bed::{Bed as Ground, deep}; pub struct Own;",
        );
        write(
            "run.rs",
            "use crate::send::Row; pub struct Run(Row); pub mod names { pub use crate::bed::Bed; }",
        );
        write("receive/mod.rs", "use crate::bed::Bed; pub struct Heard(Bed);");
        write("bed/deep.rs", "use super::Bed; pub struct Deep(Bed);");
        write("bed/mod.rs", &format!("pub mod deep; pub struct Bed; {bed}"));
        write("send.rs", send);
        Layers::parse(table).faults(&Crate::read(&root), directory.path())
    }

    const ROW: &str = "pub struct Row;\n";

    fn of_send(send: &str) -> Vec<String> {
        faults(TABLE, &format!("{ROW}{send}"), "")
    }

    #[test]
    fn what_runs_downwards_has_no_fault() {
        let fine = "use crate::bed::{Bed, deep::Deep}; use crate::Ground; use std::fmt;
                    use crate::run::names::Bed as Same;
                    pub(in crate::run) fn f() -> crate::deep::Deep { bed::f() }
                    #[cfg(test)] mod tests { use crate::run::Run; }
                    #[cfg(all(test, model))] mod models { use crate::run::Run; }
                    #[cfg(test)] fn g() { crate::run::h() }";
        assert_eq!(of_send(fine), Vec::<String>::new());
    }

    #[test]
    fn what_runs_upwards_is_found_however_it_is_written() {
        let above = "`run` stands above `send`";
        for (send, text) in [
            ("use crate::run::Run;", "crate::run::Run"),
            ("use crate::{bed::Bed, run::{Run as Other}};", "crate::run::Run"),
            ("use crate::run::*;", "crate::run"),
            ("use super::run;", "super::run"),
            ("use crate::Run;", "crate::Run"),
            ("fn f(run: crate::run::Run) {}", "crate::run::Run"),
            ("fn f() { use self::g::super_::x; super::run::g() }", "super::run::g"),
            ("mod inner { fn f() { super::super::run::g() } }", "super::super::run::g"),
            ("fn f() { println!(\"{}\", [crate::run::g()]) }", "crate::run::g"),
            ("#[serde(with = \"crate::run::g\")] struct Text;", "crate::run::g"),
        ] {
            let expected = format!("send.rs:2: `{text}`: {above}");
            assert_eq!(of_send(send), [expected], "{send}");
        }
        assert_eq!(
            of_send("use crate::receive; use receive::Heard;"),
            ["send.rs:2: `crate::receive`: `receive` stands beside `send`"]
        );
        assert_eq!(
            of_send("use super::Own;"),
            ["send.rs:2: `super::Own`: the crate's root stands above `send`"]
        );
        assert_eq!(
            faults(TABLE, ROW, "fn f() { deep::f() }"),
            ["bed/mod.rs:1: `deep::f`: `bed::deep` stands above `bed`"]
        );
    }

    #[test]
    fn a_table_lists_every_module_once() {
        let found = faults("run\nsend\nsend\nbed\nlost", ROW, "");
        assert_eq!(
            found,
            [
                "the table lists `send` twice",
                "the table lists `lost`, which is no module",
                "the table does not list `receive`",
            ]
        );
    }

    #[test]
    fn tables_are_read_from_a_page() {
        let page = "# A\n```layers crates/a\nhigh  what\nlow::er low\n```\nb\n```\nno\n```\n";
        let tables = tables(page);
        let names: Vec<_> = tables["crates/a"].listed().map(|path| path.join("::")).collect();
        assert_eq!((tables.len(), names.join(" ")), (1, "high low::er low".to_owned()));
    }
}
