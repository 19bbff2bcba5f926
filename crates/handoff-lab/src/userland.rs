//! The guest's root file system, Debian trixie.
//!
//! The small one has the packages of `lab/image/userland.packages`, and from Debian's unstable release those
//! of `lab/image/userland.newer.packages`, which must know kernels newer than trixie. The former include what
//! the latter depend on. No package's script has run, and our init stays process 1.
//!
//! The full one is a Debian system as it is installed: the packages of `lab/image/full.packages` with systemd,
//! apt and dkms, and the headers of the guest's kernel. It is for packages of ours, so it has nothing of ours.

use std::fs;
use std::path::{Path, PathBuf};

use crate::archive::{Archive, Scripts};
use crate::cache::{Cache, Layer};
use crate::error::{Error, Result, Trying};
use crate::kernel::{BACKPORTS, Kernel, KernelChoice};
use crate::progress::Progress;
use crate::tool::{self, StopFlag};

/// The release that the guest runs.
pub(crate) const SUITE: &str = "trixie";

/// Where the newest packages are.
const NEWER_SUITE: &str = "sid";

const PACKAGES: &str = include_str!("../lab/image/userland.packages");
const NEWER: &str = include_str!("../lab/image/userland.newer.packages");
const FINISH: &str = include_str!("../lab/image/userland.sh");
const FULL_PACKAGES: &str = include_str!("../lab/image/full.packages");
const FULL_FINISH: &str = include_str!("../lab/image/full.sh");
const DISK: &str = include_str!("../lab/image/disk.sh");
const IMAGE: &str = "root.ext4";

/// Changed when the build itself changes, which the other inputs do not show.
const REVISION: &str = "1";

/// Which root file system a guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Userland {
    /// Programs for tests, and ours; it is up in seconds.
    #[default]
    Small,
    /// A system as people install it: it boots systemd, has apt and dkms, and nothing of ours. For the
    /// kernels of trixie-backports.
    Full,
}

impl Userland {
    /// # Errors
    ///
    /// If there is none for this kernel.
    pub(crate) fn check(self, choice: &KernelChoice) -> Result<()> {
        match (self, choice) {
            (Self::Small, _) | (Self::Full, KernelChoice::Series(_)) => Ok(()),
            (Self::Full, _) => Err(Error::Usage(format!(
                "the full userland is for kernels of {BACKPORTS}, such as 7.2, and not for {choice}"
            ))),
        }
    }

    /// The image's path; built now if it is missing from the cache.
    pub(crate) fn image(
        self,
        choice: &KernelChoice,
        kernel: &Kernel,
        cache: &Cache,
        stop: &StopFlag,
    ) -> Result<PathBuf> {
        let directory = match self {
            Self::Small => small(cache, stop),
            Self::Full => full(choice, kernel, cache, stop),
        };
        Ok(directory?.join(IMAGE))
    }

    /// What our init starts as process 1, as an argument of the kernel; without one it stays.
    pub(crate) fn init(self) -> impl Iterator<Item = &'static str> {
        // The console is for the kernel alone.
        let systemd =
            ["init=/lib/systemd/systemd", "systemd.show_status=no", "systemd.getty_auto=no"];
        systemd.into_iter().filter(move |_| self == Self::Full)
    }
}

fn small(cache: &Cache, stop: &StopFlag) -> Result<PathBuf> {
    let layer = Layer {
        label: "userland",
        inputs: &[REVISION, SUITE, PACKAGES, NEWER, FINISH, DISK],
        space: 1200 << 20,
        title: "building the lab's userland",
    };
    cache.layer(&layer, stop, |work, progress| {
        progress.step("reading the machine's apt configuration");
        let archive = Archive::of_this_machine(stop)?;
        let packages: Vec<&str> = PACKAGES.lines().collect();
        let tree = work.join("tree");
        archive.bootstrap(&[SUITE], &packages, Scripts::Left, &tree, stop, progress)?;
        let newer: Vec<String> = NEWER.lines().map(str::to_owned).collect();
        let lists = archive.lists(NEWER_SUITE, &work.join("apt"), stop)?;
        lists.extract(&newer, &tree, stop, progress)?;
        fs::remove_dir_all(work.join("apt")).trying("package lists")?;
        finish(FINISH, &tree, work, stop, progress)
    })
}

fn full(choice: &KernelChoice, kernel: &Kernel, cache: &Cache, stop: &StopFlag) -> Result<PathBuf> {
    let layer = Layer {
        label: &format!("system-{choice}"),
        inputs: &[REVISION, SUITE, FULL_PACKAGES, FULL_FINISH, DISK, &kernel.release],
        space: 2000 << 20,
        title: "building the lab's full userland",
    };
    cache.layer(&layer, stop, |work, progress| {
        progress.step("reading the machine's apt configuration");
        let archive = Archive::of_this_machine(stop)?;
        let headers = format!("linux-headers-{}", kernel.release);
        let packages: Vec<&str> = FULL_PACKAGES.lines().chain([headers.as_str()]).collect();
        let tree = work.join("tree");
        let suites = [SUITE, BACKPORTS];
        archive.bootstrap(&suites, &packages, Scripts::Run, &tree, stop, progress)?;
        finish(FULL_FINISH, &tree, work, stop, progress)
    })
}

/// Makes the image of the installed tree, and removes the tree.
fn finish(
    script: &str,
    tree: &Path,
    work: &Path,
    stop: &StopFlag,
    progress: &Progress,
) -> Result<()> {
    progress.step("making the disk image");
    let mut finish = tool::command("sh");
    finish
        .args(["-c", &format!("{script}\n{DISK}"), "userland.sh"])
        .arg(tree)
        .arg(work.join(IMAGE));
    tool::run(finish, stop, |_| {})?;
    fs::remove_dir_all(tree).trying(tree.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_userland_has_its_kernels() {
        assert!(Userland::Full.check(&KernelChoice::default()).is_ok());
        assert!(Userland::Small.check(&KernelChoice::Bookworm).is_ok());
        for other in [KernelChoice::Bookworm, KernelChoice::Kasan] {
            let error = Userland::Full.check(&other).expect_err("has no headers there");
            assert_eq!(error.code(), 2, "{error}");
        }
    }
}
