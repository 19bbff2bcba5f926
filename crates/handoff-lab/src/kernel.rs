//! The guest's kernel: Debian's stock cloud kernel, taken apart into what a boot needs.
//!
//! Contracts:
//! - no patch version is named, because old ones vanish from the archive: the build takes the newest
//!   version of a series, and the layer then stays as it is;
//! - modules are stored unpacked, because unpacking them under software emulation costs more than
//!   reading them from a disk image.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::archive::{Archive, Lists};
use crate::cache::{Cache, Layer};
use crate::error::{Error, Result, Trying};
use crate::progress::Progress;
use crate::tool::{self, StopFlag};
use crate::unpack::unpack;

/// Modules that the initramfs loads before it can mount a disk, where they are not built in.
const BOOT_MODULES: &str = include_str!("../lab/image/modules.boot");
/// Changed when the build itself changes, which the other inputs do not show.
const REVISION: &str = "3";
/// The kernel unpacked.
const UNPACKED: &str = "vmlinux";
const FLAVOUR: &str = "cloud-amd64";
/// The packages of the kernel itself, as a part of a regular expression.
const KERNEL_PACKAGE: &str = "(image|binary|binary-unsigned)";
/// Where the newer kernels for the guest's release are found.
pub(crate) const BACKPORTS: &str = "trixie-backports";
/// The series that the project is made for.
const DEFAULT_SERIES: &str = "7.2";

/// Which kernel a guest runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelChoice {
    /// The newest stock kernel of a series (`7.2`) in trixie-backports.
    Series(String),
    /// Debian 12's own kernel, 6.1.
    Bookworm,
    /// The stock kernel's source with sanitizers, built here.
    Kasan,
}

impl Default for KernelChoice {
    fn default() -> Self {
        Self::Series(DEFAULT_SERIES.to_owned())
    }
}

impl FromStr for KernelChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numeric =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        match text.split_once('.') {
            _ if text == "bookworm" => Ok(Self::Bookworm),
            _ if text == "kasan" => Ok(Self::Kasan),
            Some((major, minor)) if numeric(major) && numeric(minor) => {
                Ok(Self::Series(text.to_owned()))
            }
            _ => Err("expected a series such as 7.2 or 7.3, bookworm or kasan".to_owned()),
        }
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Series(series) => formatter.write_str(series),
            Self::Bookworm => formatter.write_str("bookworm"),
            Self::Kasan => formatter.write_str("kasan"),
        }
    }
}

/// A kernel in the cache.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// What `uname -r` says in the guest.
    pub release: String,
    directory: PathBuf,
}

impl Kernel {
    /// The newest of a series in a suite of the archive; fetched now if it is missing from the cache.
    pub(crate) fn stock(
        name: &str,
        (suite, series): (&str, &str),
        cache: &Cache,
        stop: &StopFlag,
    ) -> Result<Self> {
        let layer = Layer {
            label: &format!("kernel-{name}"),
            inputs: &[REVISION, name, FLAVOUR, BOOT_MODULES],
            space: 700 << 20,
            title: &format!("fetching kernel {name}"),
        };
        let directory = cache
            .layer(&layer, stop, |work, progress| fetch(suite, series, work, stop, progress))?;
        Self::in_directory(directory)
    }

    pub(crate) fn in_directory(directory: PathBuf) -> Result<Self> {
        let release = directory.join("release");
        let release = fs::read_to_string(&release).trying(release.display())?;
        Ok(Self { release, directory })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What QEMU boots: the unpacked kernel if there is one.
    pub(crate) fn image(&self) -> PathBuf {
        let unpacked = self.directory.join(UNPACKED);
        if unpacked.exists() { unpacked } else { self.directory.join("vmlinuz") }
    }

    /// A disk image with all modules.
    pub(crate) fn modules_disk(&self) -> PathBuf {
        self.directory.join("modules.ext4")
    }

    /// The modules for the initramfs, in the order in which they must be loaded.
    pub(crate) fn boot_modules(&self) -> Result<Vec<PathBuf>> {
        files_in(&self.directory.join("boot"))
    }

    /// The kernel's build configuration (`CONFIG_…` lines).
    pub fn config(&self) -> PathBuf {
        self.directory.join("config")
    }
}

fn fetch(
    suite: &str,
    series: &str,
    work: &Path,
    stop: &StopFlag,
    progress: &Progress,
) -> Result<()> {
    progress.step("reading the package lists");
    let archive = Archive::of_this_machine(stop)?;
    let lists = archive.lists(suite, &work.join("apt"), stop)?;
    let (release, packages) = packages(&lists, series, stop)?;
    progress.step(&format!("downloading {release}"));
    let tree = work.join("tree");
    lists.extract(&packages, &tree, stop, progress)?;
    // A package that splits the kernel's parts has them all below usr/lib/modules; others have the
    // kernel in boot and the modules below lib/modules.
    let modules = [tree.join("usr/lib/modules"), tree.join("lib/modules")]
        .into_iter()
        .find(|path| path.join(&release).is_dir())
        .ok_or_else(|| Error::Failed(format!("{release}: the packages have no modules")))?;
    for name in ["vmlinuz", "config"] {
        let places = [
            modules.join(&release).join(name),
            modules.join(&release).join(format!("{name}.unsigned")),
            tree.join(format!("boot/{name}-{release}")),
        ];
        let from = places
            .iter()
            .find(|path| path.is_file())
            .ok_or_else(|| Error::Failed(format!("{release}: the packages have no {name}")))?;
        fs::rename(from, work.join(name)).trying(from.display())?;
    }
    let config = fs::read_to_string(work.join("config")).trying("config")?;
    if config.lines().any(|line| line == "CONFIG_PVH=y") {
        unpack(&work.join("vmlinuz"), &work.join(UNPACKED), stop)?;
    }
    // Where programs in a guest look for it; Debian's newer packages have it there.
    let found = modules.join(&release).join("config");
    fs::copy(work.join("config"), &found).trying(found.display())?;
    install_modules(&modules, &release, work, stop, progress)?;
    for scratch in [tree, work.join("apt")] {
        fs::remove_dir_all(&scratch).trying(scratch.display())?;
    }
    fs::write(work.join("release"), &release).trying("release")
}

/// The newest release of the series and its packages.
fn packages(lists: &Lists, series: &str, stop: &StopFlag) -> Result<(String, Vec<String>)> {
    let newest_of = |series: &str| -> Result<Option<String>> {
        let series = series.replace('.', "\\.");
        let pattern = format!("^linux-{KERNEL_PACKAGE}-{series}[.+~a-z0-9-]*-{FLAVOUR}$");
        Ok(newest_release(&lists.names(&pattern, stop)?))
    };
    let mut release = newest_of(&format!("{series}."))?;
    if release.is_none() && series == DEFAULT_SERIES {
        // The series has left the archive: any newer one is better than no lab.
        release = newest_of("")?;
        tracing::warn!("the archive has no kernel {series} any more; taking {release:?}");
    }
    let release = release.ok_or_else(|| {
        Error::NotPossible(format!("the archive has no kernel of the series {series}"))
    })?;
    let exactly = release.replace(['.', '+'], ".");
    let parts = format!("^linux-(binary|binary-unsigned|image|modules|base)-{exactly}$");
    Ok((release, parts_of_kernel(lists.names(&parts, stop)?)))
}

/// The newest release among names of kernel packages.
fn newest_release(packages: &[String]) -> Option<String> {
    packages
        .iter()
        .filter_map(|name| {
            let rest = ["linux-image-", "linux-binary-unsigned-", "linux-binary-"]
                .iter()
                .find_map(|part| name.strip_prefix(part))?;
            rest.starts_with(|c: char| c.is_ascii_digit()).then_some(rest)
        })
        .max_by_key(|release| version_key(release))
        .map(str::to_owned)
}

/// The packages needed for one release. From 7.2 on the image package is empty and depends on three
/// others, and a kernel that is too new to be signed exists only unsigned.
fn parts_of_kernel(mut packages: Vec<String>) -> Vec<String> {
    let has = |part: &str| packages.iter().any(|name| name.starts_with(part));
    let split = has("linux-modules-");
    let signed = packages.iter().any(|name| {
        name.strip_prefix("linux-binary-")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    packages.retain(|name| {
        if name.starts_with("linux-image-") {
            !split
        } else {
            !(signed && name.starts_with("linux-binary-unsigned-"))
        }
    });
    packages
}

/// The numbers in a release, for comparing: `7.2.12+deb13-cloud-amd64` is [7, 2, 12, 13, 64].
fn version_key(release: &str) -> Vec<u64> {
    release
        .split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap_or(u64::MAX))
        .collect()
}

/// Makes the modules' disk image and the initramfs's share of them.
pub(crate) fn install_modules(
    modules: &Path,
    release: &str,
    work: &Path,
    stop: &StopFlag,
    progress: &Progress,
) -> Result<()> {
    let tree = modules.join(release);
    progress.step("unpacking the modules");
    let packed = files_below(&tree, "ko.xz")?;
    if !packed.is_empty() {
        let mut unpack = tool::command("xz");
        unpack.args(["--decompress", "--"]).args(packed);
        tool::run(unpack, stop, |_| {})?;
    }
    // depmod looks below lib/modules of its base directory.
    let base = work.join("depmod");
    fs::create_dir_all(base.join("lib")).trying(base.display())?;
    fs::rename(modules, base.join("lib/modules")).trying(modules.display())?;
    let modules = base.join("lib/modules");
    let tree = modules.join(release);
    let mut depmod = tool::command("depmod");
    depmod.arg("--basedir").arg(&base).arg(release);
    tool::run(depmod, stop, |_| {})?;

    let dependencies = tree.join("modules.dep");
    let dependencies = fs::read_to_string(&dependencies).trying(dependencies.display())?;
    let boot = work.join("boot");
    fs::create_dir(&boot).trying(boot.display())?;
    for (number, module) in load_order(&dependencies, BOOT_MODULES.lines()).iter().enumerate() {
        let from = tree.join(module);
        let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::copy(&from, boot.join(format!("{number:02}-{name}"))).trying(from.display())?;
    }

    progress.step("making the modules' disk image");
    let mut bytes = 0;
    for file in files_below(&tree, "")? {
        // Whole blocks, and one for the metadata of the directory entry.
        bytes += (fs::metadata(&file).trying(file.display())?.len() + 4096 + 4095) & !4095;
    }
    let mut mke2fs = tool::command("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-m", "0", "-O", "^has_journal,^resize_inode"]);
    mke2fs.arg("-d").arg(&modules).arg(work.join("modules.ext4"));
    mke2fs.arg(format!("{}k", (bytes + bytes / 10 + (32 << 20)) >> 10));
    tool::run(mke2fs, stop, |_| {})?;
    fs::remove_dir_all(&base).trying(base.display())
}

/// What lies in a directory, sorted.
pub(crate) fn files_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).trying(directory.display())? {
        files.push(entry.trying(directory.display())?.path());
    }
    files.sort();
    Ok(files)
}

/// Regular files below `directory` whose names end with `.` and `extension`, or all of them.
fn files_below(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).trying(directory.display())? {
            let entry = entry.trying(directory.display())?;
            let kind = entry.file_type().trying(entry.path().display())?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file()
                && (extension.is_empty()
                    || entry.file_name().to_string_lossy().ends_with(&format!(".{extension}")))
            {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

/// The files to load for `wanted`, dependencies first; what `modules.dep` lacks is built in.
fn load_order<'a>(dependencies: &'a str, wanted: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut order: Vec<&str> = Vec::new();
    for name in wanted {
        let file = format!("/{name}.ko");
        let Some((module, needs)) = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(module, _)| module.ends_with(&file))
        else {
            continue;
        };
        // depmod lists the dependencies of dependencies too, nearest first.
        for need in needs.split_whitespace().rev().chain([module]) {
            if !order.contains(&need) {
                order.push(need);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in ["7.2", "7.3", "bookworm", "kasan"] {
            assert_eq!(text.parse::<KernelChoice>().expect("parses").to_string(), text);
        }
        for text in ["", "7", "7.", ".2", "7.2.1", "newest", "7.x"] {
            assert!(text.parse::<KernelChoice>().is_err(), "{text}");
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_newest_is_the_largest_number() {
        let packages = names(&[
            "linux-image-7.2.9+deb13-cloud-amd64",
            "linux-binary-unsigned-7.2.12+deb13-cloud-amd64",
            "linux-image-cloud-amd64",
            "linux-image-7.2.6+deb13-cloud-amd64",
        ]);
        assert_eq!(newest_release(&packages).as_deref(), Some("7.2.12+deb13-cloud-amd64"));
        assert_eq!(newest_release(&[]), None);
    }

    #[test]
    fn a_kernel_is_one_package_or_its_parts() {
        let whole = names(&["linux-image-6.1.0-56-cloud-amd64"]);
        assert_eq!(parts_of_kernel(whole.clone()), whole);
        let split = [
            "linux-base-7.2.12-x",
            "linux-binary-7.2.12-x",
            "linux-binary-unsigned-7.2.12-x",
            "linux-image-7.2.12-x",
            "linux-modules-7.2.12-x",
        ];
        assert_eq!(parts_of_kernel(names(&split)), names(&[split[0], split[1], split[4]]));
        let unsigned =
            ["linux-base-7.3.4-x", "linux-binary-unsigned-7.3.4-x", "linux-modules-7.3.4-x"];
        assert_eq!(parts_of_kernel(names(&unsigned)), names(&unsigned));
    }

    #[test]
    fn modules_load_after_what_they_need() {
        let dependencies = "\
kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
";
        let order = load_order(dependencies, ["ext4", "virtio_blk", "virtio_ring"].into_iter());
        assert_eq!(
            order,
            [
                "kernel/drivers/virtio/virtio.ko",
                "kernel/drivers/virtio/virtio_ring.ko",
                "kernel/drivers/block/virtio_blk.ko"
            ]
        );
    }
}
