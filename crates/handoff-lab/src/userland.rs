//! The guest's root file system: Debian trixie with the packages of `lab/image/userland.packages`, and
//! from Debian's unstable release those of `lab/image/userland.newer.packages`, which must know kernels
//! newer than trixie. The former include what the latter depend on.

use std::fs;
use std::path::PathBuf;

use crate::archive::Archive;
use crate::cache::{Cache, Layer};
use crate::error::{Result, Trying};
use crate::tool::{self, StopFlag};

/// The release that the guest runs.
pub(crate) const SUITE: &str = "trixie";

/// Where the newest packages are.
const NEWER_SUITE: &str = "sid";

const PACKAGES: &str = include_str!("../lab/image/userland.packages");
const NEWER: &str = include_str!("../lab/image/userland.newer.packages");
const FINISH: &str = include_str!("../lab/image/userland.sh");
const IMAGE: &str = "root.ext4";

/// Changed when the build itself changes, which the other inputs do not show.
const REVISION: &str = "1";

/// The image's path; built now if it is missing from the cache.
pub(crate) fn image(cache: &Cache, stop: &StopFlag) -> Result<PathBuf> {
    let layer = Layer {
        label: "userland",
        inputs: &[REVISION, SUITE, PACKAGES, NEWER, FINISH],
        space: 1200 << 20,
        title: "building the lab's userland",
    };
    let directory = cache.layer(&layer, stop, |work, progress| {
        progress.step("reading the machine's apt configuration");
        let archive = Archive::of_this_machine(stop)?;
        let packages: Vec<&str> = PACKAGES.lines().collect();
        let tree = work.join("tree");
        archive.bootstrap(&[SUITE], &packages, &tree, stop, |line| progress.step(line))?;
        let newer: Vec<String> = NEWER.lines().map(str::to_owned).collect();
        let lists = archive.lists(NEWER_SUITE, &work.join("apt"), stop)?;
        lists.extract(&newer, &tree, stop, |line| progress.step(line))?;
        progress.step("making the disk image");
        let mut finish = tool::command("sh");
        finish.args(["-c", FINISH, "userland.sh"]).arg(&tree).arg(work.join(IMAGE));
        tool::run(finish, stop, |_| {})?;
        for gone in [tree, work.join("apt")] {
            fs::remove_dir_all(&gone).trying(gone.display())?;
        }
        Ok(())
    })?;
    Ok(directory.join(IMAGE))
}
