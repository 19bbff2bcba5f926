//! Builds kernel modules for a guest's kernel: the project's own (`kmod/`), which are embedded here, and
//! anybody's. It uses Debian's headers and the compiler that built the kernel, in a tree of their own.
//!
//! Contracts:
//! - the source directory is not written to; results are kept under the hash of the sources and the
//!   kernel's release;
//! - the source directory has a `Kbuild` or `Makefile` for `make M=…`, and needs no other directory;
//! - in the guest, modprobe finds each module by its name and its aliases.

use std::fs;
use std::path::{Path, PathBuf};

use crate::archive::Archive;
use crate::cache::{Cache, Layer};
use crate::error::{Error, Result, Trying};
use crate::kernel::{BACKPORTS, Kernel, KernelChoice, files_in};
use crate::machine::Put;
use crate::sanitizer;
use crate::tool::{self, StopFlag};
use crate::userland::SUITE;

const PACKAGES: &str = include_str!("../lab/image/headers.packages");
const SCRIPT: &str = include_str!("../lab/image/module.sh");
/// Changed when the build itself changes, which the other inputs do not show.
const REVISION: &str = "2";
const HEADERS_REVISION: &str = "1";

// From build.rs: OURS, the name of each directory in kmod/, and the names and contents of its files.
include!(concat!(env!("OUT_DIR"), "/kmod.rs"));

/// Puts the project's own modules into a guest with the kernel of `choice`; nothing for Debian 12's.
///
/// # Errors
///
/// As [`build`].
pub fn ours(choice: &KernelChoice, cache: &Cache, stop: &StopFlag) -> Result<Vec<Put>> {
    let mut puts = Vec::new();
    if *choice == KernelChoice::Bookworm {
        return Ok(puts);
    }
    let scratch = tempfile::tempdir().trying("directory for sources")?;
    for (name, files) in OURS {
        let source = scratch.path().join(name);
        fs::create_dir(&source).trying(source.display())?;
        for (file, content) in *files {
            fs::write(source.join(file), content).trying(file)?;
        }
        puts.extend(build(choice, &source, cache, stop)?);
    }
    Ok(puts)
}

/// Puts the modules built from `source` into a guest with the kernel of `choice`: the `.ko` files go to
/// `/opt/handoff/modules`, and modprobe learns about them.
///
/// # Errors
///
/// [`Error::Failed`] with the compiler's last lines; [`Error::NotPossible`] without root.
pub fn build(
    choice: &KernelChoice,
    source: &Path,
    cache: &Cache,
    stop: &StopFlag,
) -> Result<Vec<Put>> {
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
        let mut make = tool::enclosed("sh");
        make.args(["-c", SCRIPT, "module.sh"]).arg(tree);
        make.arg(&source).arg(&kernel.release).arg(work);
        tool::run(make, stop, |line| progress.step(line))?;
        for module in files_in(work)? {
            describe(&module, stop)?;
        }
        Ok(())
    })?;
    let puts = files_in(&directory)?.into_iter().map(|source| {
        let name = source.file_name().unwrap_or_default();
        let place = if is_module(&source) { MODULES } else { MODPROBE };
        Put { target: Path::new(place).join(name), source }
    });
    Ok(puts.collect())
}

/// Where modules are in the guest.
const MODULES: &str = "/opt/handoff/modules";
/// Where modprobe looks for its configuration in the guest.
const MODPROBE: &str = "/etc/modprobe.d";

/// Writes what modprobe must know about a module that is not the kernel's own: the kernel's index is on
/// a read-only disk, and would have to be rebuilt at every boot.
fn describe(module: &Path, stop: &StopFlag) -> Result<()> {
    let name = module.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let field = |field: &str| {
        let mut modinfo = tool::command("modinfo");
        modinfo.args(["-F", field]).arg(module);
        tool::run(modinfo, stop, |_| {})
    };
    let mut text = format!("install {name} insmod {MODULES}/{name}.ko $CMDLINE_OPTS\n");
    for alias in field("alias")?.lines() {
        text += &format!("alias {alias} {name}\n");
    }
    let needs = field("depends")?.trim().replace(',', " ");
    if !needs.is_empty() {
        text += &format!("softdep {name} pre: {needs}\n");
    }
    let path = module.with_extension("conf");
    fs::write(&path, text).trying(path.display())
}

fn is_module(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "ko")
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
        inputs: &[HEADERS_REVISION, release_suite, kernel_suite, PACKAGES, &kernel.release],
        space: 1500 << 20,
        title: "fetching compiler and kernel headers",
    };
    let directory = cache.layer(&layer, stop, |work, progress| {
        let archive = Archive::of_this_machine(stop)?;
        let own = format!("linux-headers-{}", kernel.release);
        let packages: Vec<&str> = PACKAGES.lines().chain([own.as_str()]).collect();
        let tree = work.join("tree");
        let suites = [release_suite, kernel_suite];
        archive.compiler(&suites, &packages, &tree, stop, progress)?;
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
    let mut contents = Vec::new();
    for path in files_in(source)? {
        if path.is_dir() {
            contents.extend(self::contents(&path)?);
        } else {
            contents.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            contents.push(String::from_utf8_lossy(&fs::read(&path).trying(path.display())?).into());
        }
    }
    Ok(contents)
}
