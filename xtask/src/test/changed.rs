//! Which packages a change can break.
//!
//! A package is concerned when a file in its directory changed, when it uses one that is concerned, or
//! when one of its sources names a changed file that is in no package (`bpf/meter.bpf.c`,
//! `docs/public-api.txt`, `kmod/wire/main.c`), or that file's directory.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The packages that are concerned.
#[derive(Debug)]
pub(super) struct Packages {
    files: usize,
    /// Where they are.
    directories: BTreeSet<PathBuf>,
}

impl Packages {
    /// Whether the package with this manifest is concerned.
    pub(super) fn has(&self, manifest: &str) -> bool {
        Path::new(manifest).parent().is_some_and(|place| self.directories.contains(place))
    }
}

impl fmt::Display for Packages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self
            .directories
            .iter()
            .map(|place| place.file_name().unwrap_or_default().to_string_lossy())
            .collect();
        write!(formatter, "{} changed files concern: {}", self.files, names.join(", "))
    }
}

/// The packages that the change since `revision` concerns, uncommitted and new files among it.
pub(super) fn packages(revision: &str) -> Result<Packages, String> {
    let root = PathBuf::from(output("git", &["rev-parse", "--show-toplevel"])?.trim());
    let mut files = output("git", &["diff", "--name-only", revision])?;
    files += &output("git", &["ls-files", "--others", "--exclude-standard"])?;
    let files: BTreeSet<PathBuf> = files.lines().map(|file| root.join(file)).collect();

    let metadata = output("cargo", &["metadata", "--no-deps", "--format-version=1"])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let all: Vec<Package> =
        metadata["packages"].as_array().into_iter().flatten().map(Package::new).collect();
    let directories = concerned(&all, &files, &root);
    Ok(Packages { files: files.len(), directories })
}

#[derive(Debug, PartialEq, Eq)]
struct Package {
    directory: PathBuf,
    /// The directories of packages of this tree that it uses, for its tests too.
    uses: Vec<PathBuf>,
}

impl Package {
    fn new(package: &Value) -> Self {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let uses = package["dependencies"].as_array().into_iter().flatten();
        Self {
            directory: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
            uses: uses.filter_map(|used| used["path"].as_str().map(PathBuf::from)).collect(),
        }
    }
}

fn concerned(all: &[Package], files: &BTreeSet<PathBuf>, root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for file in files {
        match all.iter().find(|package| file.starts_with(&package.directory)) {
            Some(package) => {
                found.insert(package.directory.clone());
            }
            None => {
                let naming = all.iter().filter(|package| package.names(file, root));
                found.extend(naming.map(|package| package.directory.clone()));
            }
        }
    }
    loop {
        let users =
            all.iter().filter(|package| package.uses.iter().any(|used| found.contains(used)));
        let before = found.len();
        found.extend(users.map(|package| package.directory.clone()).collect::<Vec<_>>());
        if found.len() == before {
            return found;
        }
    }
}

impl Package {
    /// Whether a source of the package names the file, or a directory of the tree that it is in.
    fn names(&self, file: &Path, root: &Path) -> bool {
        let Ok(path) = file.strip_prefix(root) else { return false };
        // What decides how everything is built concerns everything.
        if path.components().count() == 1 && path.extension().is_none_or(|kind| kind != "md") {
            return true;
        }
        let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut words = vec![file_name];
        let directories = path.ancestors().skip(1).filter(|place| *place != Path::new(""));
        words.extend(directories.map(|place| format!("../{}\"", place.display())));
        sources(&self.directory).iter().any(|source| {
            fs::read_to_string(source)
                .is_ok_and(|text| words.iter().any(|word| text.contains(word.as_str())))
        })
    }
}

/// All sources below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
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
    use super::*;

    #[test]
    fn users_and_those_who_name_a_file_are_concerned() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = tree.path();
        let package = |name: &str, uses: &[&str], source: &str| {
            let directory = root.join("crates").join(name);
            fs::create_dir_all(directory.join("src")).expect("writes");
            fs::write(directory.join("src/lib.rs"), source).expect("writes");
            let uses = uses.iter().map(|used| root.join("crates").join(used)).collect();
            Package { directory, uses }
        };
        let all = [
            package("low", &[], ""),
            package("high", &["low"], ""),
            package("reader", &[], "include_str!(\"../../../bpf/meter.bpf.c\")"),
            package("builder", &[], "Path::new(&manifest).join(\"../../kmod\")"),
        ];
        let names = |files: &[&str]| {
            let files = files.iter().map(|file| root.join(file)).collect();
            let found = concerned(&all, &files, root);
            found
                .iter()
                .map(|place| place.file_name().expect("a name").to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&["crates/low/src/lib.rs"]), ["high", "low"]);
        assert_eq!(names(&["crates/high/tests/a.rs"]), ["high"]);
        assert_eq!(names(&["bpf/meter.bpf.c"]), ["reader"]);
        assert_eq!(names(&["kmod/wire/main.c"]), ["builder"]);
        assert_eq!(names(&["docs/block.md", "README.md"]), [""; 0]);
        assert_eq!(names(&["Cargo.lock"]).len(), 4);
    }
}
