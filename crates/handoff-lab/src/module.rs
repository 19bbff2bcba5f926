//! Builds kernel modules for a guest's kernel, with Debian's headers and the compiler that the
//! kernel was built with, in a tree of their own.
//!
//! Contracts:
//! - the source directory is not written to; what is built is kept under the hash of the sources
//!   and the kernel's release;
//! - the source directory has a `Kbuild` or `Makefile` as `make M=…` wants it, and stands alone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::archive::Archive;
use crate::cache::{Cache, Layer};
use crate::error::{Error, Result, Trying};
use crate::kernel::{BACKPORTS, Kernel, KernelChoice};
use crate::sanitizer;
use crate::tool::{self, StopFlag};
use crate::userland::SUITE;

const PACKAGES: &str = include_str!("../../../lab/image/headers.packages");
const SCRIPT: &str = include_str!("../../../lab/image/module.sh");
/// Changed when the way of building changes, which the other inputs do not show.
const REVISION: &str = "1";

/// The modules (`.ko` files) that `source` makes for the kernel of `choice`.
///
/// # Errors
///
/// [`Error::Failed`] with the compiler's last lines; [`Error::NotPossible`] without root.
pub fn build(
    choice: &KernelChoice,
    source: &Path,
    cache: &Cache,
    stop: &StopFlag,
) -> Result<Vec<PathBuf>> {
    let source = source
        .canonicalize()
        .map_err(|error| Error::Usage(format!("module {}: {error}", source.display())))?;
    let kernel = Kernel::of(choice, cache, stop)?;
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let contents = contents(&source)?;
    let mut inputs = vec![REVISION, SCRIPT, &kernel.release];
    inputs.extend(contents.iter().map(String::as_str));
    let layer = Layer {
        label: &format!("module-{name}"),
        inputs: &inputs,
        space: 64 << 20,
        title: &format!("building the module {name}"),
    };
    let directory = cache.layer(&layer, stop, |work, progress| {
        let tree = headers(&kernel, choice, cache, stop)?;
        let mut make = tool::command("unshare");
        make.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "module.sh"]);
        make.arg(tree).arg(&source).arg(&kernel.release).arg(work);
        tool::run(make, stop, |line| progress.step(line)).map(drop)
    })?;
    modules_in(&directory)
}

/// A tree with compiler and headers for `kernel`.
fn headers(
    kernel: &Kernel,
    choice: &KernelChoice,
    cache: &Cache,
    stop: &StopFlag,
) -> Result<PathBuf> {
    let (release_suite, kernel_suite) = match choice {
        KernelChoice::Series(_) => (SUITE, BACKPORTS),
        KernelChoice::Kasan => return Ok(sanitizer::headers(kernel)),
        KernelChoice::Bookworm => {
            return Err(Error::NotPossible(
                "modules are built for the kernels of trixie-backports only".to_owned(),
            ));
        }
    };
    let layer = Layer {
        label: &format!("headers-{choice}"),
        inputs: &[REVISION, release_suite, kernel_suite, PACKAGES, &kernel.release],
        space: 1500 << 20,
        title: "fetching compiler and kernel headers",
    };
    let directory = cache.layer(&layer, stop, |work, progress| {
        let archive = Archive::of_this_machine(stop)?;
        let own = format!("linux-headers-{}", kernel.release);
        let packages: Vec<&str> = PACKAGES.lines().chain([own.as_str()]).collect();
        let tree = work.join("tree");
        archive.bootstrap(&[release_suite, kernel_suite], &packages, &tree, stop, |line| {
            progress.step(line);
        })?;
        // A mount point for each build's scratch space.
        fs::create_dir(tree.join("build")).trying("build directory")?;
        // Made by a script of the package, and scripts are not run.
        std::os::unix::fs::symlink("gawk", tree.join("usr/bin/awk")).trying("awk")?;
        for unneeded in ["usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt"] {
            let path = tree.join(unneeded);
            if path.exists() {
                fs::remove_dir_all(&path).trying(path.display())?;
            }
        }
        Ok(())
    })?;
    Ok(directory.join("tree"))
}

/// Names and contents of all files of a source directory, in a fixed order.
fn contents(source: &Path) -> Result<Vec<String>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(source).trying(source.display())? {
        entries.push(entry.trying(source.display())?.path());
    }
    entries.sort();
    let mut contents = Vec::new();
    for path in entries {
        if path.is_dir() {
            contents.extend(self::contents(&path)?);
        } else {
            contents.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            contents.push(String::from_utf8_lossy(&fs::read(&path).trying(path.display())?).into());
        }
    }
    Ok(contents)
}

fn modules_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(directory).trying(directory.display())? {
        modules.push(entry.trying(directory.display())?.path());
    }
    modules.sort();
    Ok(modules)
}
