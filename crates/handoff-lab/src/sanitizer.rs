//! The sanitizer kernel: the source of the stock kernel, built with the sanitizers of
//! `lab/image/kasan.config` and little else.
//!
//! It finds what a stock kernel does not report: use after free, wrong lock order, sleeping where that
//! is forbidden, leaked memory. Everything is several times slower, so use it for long runs, not for the
//! gate.

use std::fs;
use std::path::{Path, PathBuf};

use crate::archive::Archive;
use crate::cache::{Cache, Layer};
use crate::error::{Result, Trying};
use crate::kernel::{BACKPORTS, Kernel, install_modules};
use crate::tool::{self, StopFlag};
use crate::userland::SUITE;

const CONFIGURATION: &str = include_str!("../lab/image/kasan.config");
const PACKAGES: &str = include_str!("../lab/image/kasan.packages");
const SCRIPT: &str = include_str!("../lab/image/kasan.sh");
/// The source's package; the series is that of the default kernel.
const SOURCE: &str = "linux-source-7.2";
/// Changed when the build itself changes, which the other inputs do not show.
const REVISION: &str = "1";

/// The kernel; built now if it is missing from the cache, which takes most of an hour.
pub(crate) fn kernel(cache: &Cache, stop: &StopFlag) -> Result<Kernel> {
    let layer = Layer {
        label: "kernel-kasan",
        inputs: &[REVISION, SOURCE, CONFIGURATION, PACKAGES, SCRIPT],
        space: 14 << 30,
        title: "building the sanitizer kernel (up to 45 minutes on two cores)",
    };
    let directory = cache.layer(&layer, stop, |work, progress| {
        let archive = Archive::of_this_machine(stop)?;
        let packages: Vec<&str> = PACKAGES.lines().chain([SOURCE]).collect();
        let tree = tree(work);
        archive.compiler(&[SUITE, BACKPORTS], &packages, &tree, stop, progress)?;
        let fragment = work.join("fragment");
        fs::write(&fragment, CONFIGURATION).trying(fragment.display())?;
        let mut make = tool::enclosed("sh");
        make.args(["-c", SCRIPT, "kasan.sh"]);
        make.arg(&tree).arg(&fragment).arg(work);
        tool::run(make, stop, |line| progress.step(line))?;
        let release = work.join("release");
        let release = fs::read_to_string(&release).trying(release.display())?;
        install_modules(&work.join("modules"), &release, work, stop, progress)
    })?;
    Kernel::in_directory(directory)
}

/// The compiler and the headers for modules of this kernel.
pub(crate) fn headers(kernel: &Kernel) -> PathBuf {
    tree(kernel.directory())
}

fn tree(directory: &Path) -> PathBuf {
    directory.join("tree")
}
