//! Which packages a change can break.
//!
//! A change affects a package if it changes a file in its directory; if it affects a package that this
//! one uses; if one of its sources names a changed file that is in no package (`docs/public-api.txt`);
//! or if it has a link to the file's directory (`bpf/meter.bpf.c`, `kmod/wire/main.c`). If only test
//! programs of a package changed, the change affects only these, or all of them if they share the file.
//! Every change affects the test programs that read all pages or sources ([`READERS`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Where the packages are, and which of their test programs, that read all pages or sources of the tree.
const READERS: [(&str, &str); 2] = [("crates/handoff-contract", "contract"), ("xtask", "xtask")];

/// The affected packages.
#[derive(Debug)]
pub(super) struct Packages {
    files: usize,
    /// Where the packages are, and which part of them is affected.
    concerned: BTreeMap<PathBuf, Part>,
    documented: Vec<String>,
}

/// The affected part of a package.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// Test programs of these names.
    Programs(BTreeSet<String>),
}

impl Packages {
    fn new(all: &[Package], files: &BTreeSet<PathBuf>, root: &Path) -> Self {
        let concerned = concerned(all, files, root);
        let whole = |package: &&Package| concerned.get(&package.directory) == Some(&Part::Whole);
        let documented = all.iter().filter(whole).filter_map(|package| package.documented.clone());
        Self { files: files.len(), documented: documented.collect(), concerned }
    }

    /// Whether the test program of this name, in the package with this manifest, is affected.
    pub(super) fn has(&self, manifest: &str, program: &str) -> bool {
        let place = Path::new(manifest).parent().unwrap_or(Path::new("/"));
        match self.concerned.get(place) {
            Some(Part::Whole) => true,
            Some(Part::Programs(names)) => names.contains(program),
            None => false,
        }
    }

    /// The names of those whose documentation has affected tests.
    pub(super) fn documented(&self) -> &[String] {
        &self.documented
    }
}

impl fmt::Display for Packages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |(place, part): (&PathBuf, &Part)| {
            let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match part {
                Part::Whole => name,
                Part::Programs(programs) => {
                    let programs: Vec<_> = programs.iter().map(String::as_str).collect();
                    format!("{name} (tests {})", programs.join(" "))
                }
            }
        };
        let names: Vec<_> = self.concerned.iter().map(name).collect();
        write!(formatter, "{} changed files concern: {}", self.files, names.join(", "))
    }
}

/// The packages affected by the change since `revision`, with uncommitted and new files.
pub(super) fn packages(revision: &str) -> Result<Packages, String> {
    let root = PathBuf::from(output("git", &["rev-parse", "--show-toplevel"])?.trim());
    let mut files = output("git", &["diff", "--name-only", revision])?;
    files += &output("git", &["ls-files", "--others", "--exclude-standard", "--full-name", ":/"])?;
    let files: BTreeSet<PathBuf> = files.lines().map(|file| root.join(file)).collect();

    let metadata = output("cargo", &["metadata", "--no-deps", "--format-version=1"])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let all: Vec<Package> =
        metadata["packages"].as_array().into_iter().flatten().map(Package::new).collect();
    Ok(Packages::new(&all, &files, &root))
}

#[derive(Debug, PartialEq, Eq)]
struct Package {
    directory: PathBuf,
    /// The directories of the packages in this tree that it uses, for its tests too.
    uses: Vec<PathBuf>,
    /// The names of its test programs.
    programs: BTreeSet<String>,
    /// Its name, if its documentation has tests.
    documented: Option<String>,
}

impl Package {
    fn new(package: &Value) -> Self {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let uses = package["dependencies"].as_array().into_iter().flatten();
        let targets = || package["targets"].as_array().into_iter().flatten();
        let programs = targets().filter(|target| target["kind"][0] == "test");
        let name = package["name"].as_str().map(str::to_owned);
        Self {
            directory: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
            uses: uses.filter_map(|used| used["path"].as_str().map(PathBuf::from)).collect(),
            programs: programs
                .filter_map(|target| target["name"].as_str().map(str::to_owned))
                .collect(),
            documented: name.filter(|_| targets().any(|target| target["doctest"] == true)),
        }
    }

    /// The test programs that a file below `tests/`, by its path in the package, belongs to: its own
    /// one, or all that may share it.
    fn programs_with(&self, path: &Path) -> Option<BTreeSet<String>> {
        let first = path.strip_prefix("tests").ok()?.iter().next()?;
        let name = Path::new(first).file_stem()?.to_string_lossy().into_owned();
        Some(if self.programs.contains(&name) { [name].into() } else { self.programs.clone() })
    }
}

fn concerned(all: &[Package], files: &BTreeSet<PathBuf>, root: &Path) -> BTreeMap<PathBuf, Part> {
    let mut whole = BTreeSet::new();
    let mut programs: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    if !files.is_empty() {
        let readers = READERS.map(|(place, name)| (root.join(place), [name.to_owned()].into()));
        programs.extend(readers);
    }
    for file in files {
        let of_package = all
            .iter()
            .find_map(|package| Some((package, file.strip_prefix(&package.directory).ok()?)));
        match of_package {
            Some((package, path)) => match package.programs_with(path) {
                Some(names) => {
                    programs.entry(package.directory.clone()).or_default().extend(names);
                }
                None => {
                    whole.insert(package.directory.clone());
                }
            },
            None => {
                let naming = all.iter().filter(|package| package.names(file, root));
                whole.extend(naming.map(|package| package.directory.clone()));
            }
        }
    }
    loop {
        let is_new = |package: &&Package| {
            !whole.contains(&package.directory)
                && package.uses.iter().any(|used| whole.contains(used))
        };
        let users: Vec<_> =
            all.iter().filter(is_new).map(|package| package.directory.clone()).collect();
        if users.is_empty() {
            break;
        }
        whole.extend(users);
    }
    let mut found: BTreeMap<_, _> =
        programs.into_iter().map(|(place, names)| (place, Part::Programs(names))).collect();
    found.extend(whole.into_iter().map(|place| (place, Part::Whole)));
    found
}

impl Package {
    /// Whether a source of the package names the file, or the package has a link to the file's
    /// directory.
    fn names(&self, file: &Path, root: &Path) -> bool {
        let Ok(path) = file.strip_prefix(root) else { return false };
        // Files that decide how everything is built affect everything.
        if path.components().count() == 1 && path.extension().is_none_or(|kind| kind != "md") {
            return true;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        links(&self.directory).iter().any(|link| file.starts_with(link))
            || sources(&self.directory).iter().any(|source| {
                fs::read_to_string(source).is_ok_and(|text| text.contains(name.as_ref()))
            })
    }
}

/// The targets of the links that are directly in a directory.
fn links(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    links.filter_map(|link| fs::canonicalize(link.path()).ok()).collect()
}

/// All sources below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "toml") {
            found.push(path);
        }
    }
    found
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let what = format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{what}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn users_and_those_who_name_a_file_are_concerned() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = &fs::canonicalize(tree.path()).expect("is there");
        fs::create_dir(root.join("kmod")).expect("writes");
        let package = |name: &str, uses: &[&str], source: &str| {
            let directory = root.join("crates").join(name);
            fs::create_dir_all(directory.join("src")).expect("writes");
            fs::write(directory.join("src/lib.rs"), source).expect("writes");
            let uses = uses.iter().map(|used| root.join("crates").join(used)).collect();
            let programs = ["a", "b"].map(str::to_owned).into();
            let documented = (name != "high").then(|| name.to_owned());
            Package { directory, uses, programs, documented }
        };
        let all = [
            package("low", &[], ""),
            package("high", &["low"], ""),
            package("reader", &[], "include_str!(\"../../../bpf/meter.bpf.c\")"),
            package("builder", &[], ""),
        ];
        symlink("../../kmod", root.join("crates/builder/kmod")).expect("links");
        let found = |files: &[&str]| {
            let files = files.iter().map(|file| root.join(file)).collect();
            let packages = Packages::new(&all, &files, root);
            let told = packages.to_string();
            let (_, concerned) = told.split_once(": ").expect("says how many");
            let concerned = concerned.replace("handoff-contract (tests contract)", "all");
            let concerned = concerned.replace(", xtask (tests xtask)", "");
            (concerned, packages.documented().join(" "))
        };
        let expected = |concerned: &str, documented: &str| (concerned.into(), documented.into());
        assert_eq!(found(&["crates/low/src/lib.rs"]), expected("all, high, low", "low"));
        assert_eq!(
            found(&["crates/low/src/lib.rs", "crates/low/tests/a.rs"]),
            expected("all, high, low", "low")
        );
        assert_eq!(found(&["crates/low/tests/a.rs"]), expected("all, low (tests a)", ""));
        assert_eq!(
            found(&["crates/low/tests/b/main.rs", "crates/low/tests/a.rs"]),
            expected("all, low (tests a b)", "")
        );
        // A file that test programs share, and one that one of them reads.
        assert_eq!(
            found(&["crates/low/tests/shared/mod.rs"]),
            expected("all, low (tests a b)", "")
        );
        assert_eq!(found(&["bpf/meter.bpf.c"]), expected("all, reader", "reader"));
        assert_eq!(found(&["kmod/wire/main.c"]), expected("builder, all", "builder"));
        assert_eq!(found(&["docs/block.md", "README.md"]), expected("all", ""));
        assert_eq!(
            found(&["Cargo.lock"]),
            expected("builder, all, high, low, reader", "low reader builder")
        );
        assert_eq!(found(&[]), expected("", ""));
    }

    #[test]
    fn the_program_that_reads_all_pages_is_there() {
        let (package, program) = READERS[0];
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tree");
        let tests = root.join(package).join("tests").join(program);
        assert!(tests.join("links.rs").is_file(), "{}", tests.display());
    }
}
