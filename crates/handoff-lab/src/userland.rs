//! The guest's root file system: Debian trixie, the packages of `lab/image/userland.packages`.

use std::fs;
use std::path::PathBuf;

use crate::archive::Archive;
use crate::cache::{Cache, Layer};
use crate::error::{Result, Trying};
use crate::tool::{self, StopFlag};

/// The release that the guest runs.
pub(crate) const SUITE: &str = "trixie";

const PACKAGES: &str = include_str!("../../../lab/image/userland.packages");
const FINISH: &str = include_str!("../../../lab/image/userland.sh");
const IMAGE: &str = "root.ext4";

/// Changed when the way of building changes, which the other inputs do not show.
const REVISION: &str = "1";

/// The image's path; it is built now if it is not in the cache.
pub(crate) fn image(cache: &Cache, stop: &StopFlag) -> Result<PathBuf> {
    let layer = Layer {
        label: "userland",
        inputs: &[REVISION, SUITE, PACKAGES, FINISH],
        space: 1200 << 20,
        title: "building the lab's userland",
    };
    let directory = cache.layer(&layer, stop, |work, progress| {
        progress.step("reading the machine's apt configuration");
        let archive = Archive::of_this_machine(stop)?;
        let packages: Vec<&str> = PACKAGES.lines().collect();
        let tree = work.join("tree");
        archive.bootstrap(&[SUITE], &packages, &tree, stop, |line| progress.step(line))?;
        progress.step("making the disk image");
        let mut finish = tool::command("sh");
        finish.args(["-c", FINISH, "userland.sh"]).arg(&tree).arg(work.join(IMAGE));
        tool::run(finish, stop, |_| {})?;
        fs::remove_dir_all(&tree).trying(tree.display())
    })?;
    Ok(directory.join(IMAGE))
}
