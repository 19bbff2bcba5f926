//! Where built layers are stored, each under a name that contains the hash of its inputs.
//!
//! Contracts:
//! - a layer appears whole or not at all: it is built in a temporary directory and renamed;
//! - one process builds a layer; others that want it wait, and then find it;
//! - what a killed build leaves behind is removed by the next one;
//! - [`Cache::clear`] refuses while a guest is running from the cache.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result, Trying};
use crate::progress::Progress;
use crate::tool::StopFlag;

/// Name of the environment variable that moves the cache.
pub const DIRECTORY_VARIABLE: &str = "HANDOFF_LAB_DIR";

/// An open cache. While it is open, [`Cache::clear`] of another process refuses.
///
/// ```no_run
/// use handoff_lab::Cache;
///
/// # fn main() -> handoff_lab::Result<()> {
/// println!("{}", Cache::open()?.directory().display());
/// println!("{} bytes freed", Cache::clear()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cache {
    directory: PathBuf,
    /// Holds a shared lock.
    _in_use: File,
}

/// Something that can be built and kept.
pub(crate) struct Layer<'a> {
    /// Kind of the layer, for people.
    pub(crate) label: &'a str,
    /// Everything that the result depends on.
    pub(crate) inputs: &'a [&'a str],
    /// Bytes on disk that the build needs at its peak.
    pub(crate) space: u64,
    /// What to show while it is built.
    pub(crate) title: &'a str,
}

impl Layer<'_> {
    fn name(&self) -> String {
        let mut hash = Sha256::new();
        for input in self.inputs {
            hash.update((input.len() as u64).to_le_bytes());
            hash.update(input.as_bytes());
        }
        let digest = hash.finalize();
        let hex: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{hex}", self.label)
    }
}

impl Cache {
    /// Opens the cache of this user: `$HANDOFF_LAB_DIR`, else `/var/cache/handoff/lab` for root and
    /// `~/.cache/handoff/lab` (`$XDG_CACHE_HOME`) for others.
    ///
    /// # Errors
    ///
    /// If the directory cannot be made or read.
    pub fn open() -> Result<Self> {
        Self::open_at(&default_directory()?)
    }

    /// Opens the cache in `directory`, and makes the directory if it is missing.
    ///
    /// # Errors
    ///
    /// If the directory cannot be made or read.
    pub fn open_at(directory: &Path) -> Result<Self> {
        let what = format!("cache {} ({DIRECTORY_VARIABLE} moves it)", directory.display());
        fs::create_dir_all(directory).trying(&what)?;
        let lock = directory.join("in-use.lock");
        // A user who may only read the cache can still boot from one that root has filled.
        let in_use = File::create(&lock).or_else(|_| File::open(&lock)).trying(&what)?;
        flock(&in_use, FlockOperation::LockShared).trying(&what)?;
        Ok(Self { directory: directory.to_owned(), _in_use: in_use })
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes a cache and everything in it; returns the number of bytes freed.
    ///
    /// # Errors
    ///
    /// If a guest or a build uses it, or something cannot be removed.
    pub fn clear() -> Result<u64> {
        let directory = default_directory()?;
        let lock = match File::open(directory.join("in-use.lock")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            other => other.trying(directory.display())?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::Failed(format!(
                    "{} is in use by a guest or a build; end that first",
                    directory.display()
                )));
            }
            other => other.trying(directory.display())?,
        }
        let size = size_of(&directory);
        // Only what the lab has made: the user may share the directory with others.
        for entry in fs::read_dir(&directory).trying(directory.display())? {
            let path = entry.trying(directory.display())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && is_ours(&name) {
                fs::remove_dir_all(&path).trying(path.display())?;
            } else if name.ends_with(".lock") || name.starts_with("accelerator-") {
                fs::remove_file(&path).trying(path.display())?;
            }
        }
        // Stays if it contains anything of others.
        let _ = fs::remove_dir(&directory);
        Ok(size)
    }

    /// The layer's directory; built now if it is missing.
    pub(crate) fn layer(
        &self,
        layer: &Layer<'_>,
        stop: &StopFlag,
        build: impl FnOnce(&Path, &Progress) -> Result<()>,
    ) -> Result<PathBuf> {
        let name = layer.name();
        let path = self.directory.join(&name);
        if path.is_dir() {
            return Ok(path);
        }
        let progress = Progress::new(layer.title);
        let _lock = self.lock(layer.label, stop, &progress)?;
        if path.is_dir() {
            return Ok(path);
        }
        let unfinished = format!("unfinished-{}-", layer.label);
        for entry in fs::read_dir(&self.directory).trying(self.directory.display())?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&unfinished) {
                fs::remove_dir_all(entry.path()).trying(entry.path().display())?;
            }
        }
        self.check_space(layer)?;
        tracing::info!("{}: {}", layer.title, path.display());
        let work = tempfile::Builder::new()
            .prefix(&unfinished)
            .tempdir_in(&self.directory)
            .trying("directory for the build")?;
        build(work.path(), &progress)?;
        // Temporary directories belong to their owner alone; the cache is for everybody.
        fs::set_permissions(work.path(), Permissions::from_mode(0o755))
            .trying(work.path().display())?;
        fs::rename(work.path(), &path).trying(path.display())?;
        // Renamed away: there is nothing left for the drop to remove.
        let _ = work.keep();
        Ok(path)
    }

    fn lock(&self, label: &str, stop: &StopFlag, progress: &Progress) -> Result<File> {
        let path = self.directory.join(format!("{label}.lock"));
        let lock = File::create(&path).trying(path.display())?;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::WOULDBLOCK) => progress.step("waiting for another build of it"),
                Err(error) => return Err(error).trying(path.display()),
            }
            if stop.load(Ordering::Acquire) {
                return Err(Error::Stopped);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn check_space(&self, layer: &Layer<'_>) -> Result<()> {
        let free = statvfs(&self.directory).trying(self.directory.display())?;
        let free = free.f_bavail * free.f_frsize;
        if free < layer.space {
            return Err(Error::NotPossible(format!(
                "{} needs {} MiB on {}, which has {} MiB free; make room or set {DIRECTORY_VARIABLE}",
                layer.title,
                layer.space >> 20,
                self.directory.display(),
                free >> 20,
            )));
        }
        Ok(())
    }
}

/// Whether the lab has made a directory of this name: a label and a hash, or an unfinished build.
fn is_ours(name: &str) -> bool {
    let labels = ["userland", "system-", "kernel-", "headers-", "module-"];
    let hashed = name.rsplit_once('-').is_some_and(|(label, hash)| {
        labels.iter().any(|ours| label.starts_with(ours))
            && hash.len() == 16
            && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    hashed || name.starts_with("unfinished-")
}

fn default_directory() -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        return std::path::absolute(directory).trying(DIRECTORY_VARIABLE);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/cache/handoff/lab"));
    }
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(directory) => PathBuf::from(directory),
        None => std::env::home_dir()
            .ok_or_else(|| Error::Usage(format!("no home directory; set {DIRECTORY_VARIABLE}")))?
            .join(".cache"),
    };
    Ok(base.join("handoff/lab"))
}

/// Bytes on disk below `directory`; what vanishes meanwhile counts as nothing.
fn size_of(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn layer<'a>(inputs: &'a [&'a str]) -> Layer<'a> {
        Layer { label: "userland", inputs, space: 0, title: "a layer" }
    }

    #[test]
    fn inputs_make_the_name() {
        assert_ne!(layer(&["ab", "c"]).name(), layer(&["a", "bc"]).name());
        assert_eq!(layer(&["ab", "c"]).name(), layer(&["ab", "c"]).name());
    }

    #[test]
    fn a_failed_build_leaves_nothing_and_a_good_one_is_made_once() {
        let place = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::open_at(place.path()).expect("opens");
        let stop = StopFlag::default();
        let failed = cache.layer(&layer(&["x"]), &stop, |work, _| {
            fs::write(work.join("half"), "x").expect("writes");
            Err(Error::Failed("broken".into()))
        });
        assert!(failed.is_err());
        let left = fs::read_dir(place.path()).expect("lists").flatten().count();
        assert_eq!(left, 2, "only the two lock files");

        let built = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let path = cache.layer(&layer(&["x"]), &stop, |work, _| {
                        built.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(50));
                        fs::write(work.join("whole"), "x").trying("write")
                    });
                    assert!(path.expect("is built").join("whole").is_file());
                });
            }
        });
        assert_eq!(built.into_inner(), 1);
    }

    #[test]
    fn what_a_killed_build_left_is_removed() {
        let place = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::open_at(place.path()).expect("opens");
        let left = place.path().join("unfinished-userland-xyz");
        fs::create_dir(&left).expect("makes");
        cache.layer(&layer(&["y"]), &StopFlag::default(), |_, _| Ok(())).expect("builds");
        assert!(!left.exists());
    }

    #[test]
    fn only_layers_are_cleared() {
        assert!(is_ours(&layer(&["x"]).name()));
        assert!(is_ours("kernel-7.2-07c54a2ed88e3526"));
        assert!(is_ours("system-7.2-97d7f46ef1db4b9a"));
        assert!(is_ours("unfinished-userland-xyz"));
        for other in ["kernel-sources", "userland", "modules-of-mine", "my-07c54a2ed88e3526"] {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn too_little_space_says_how_much_is_missing() {
        let place = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::open_at(place.path()).expect("opens");
        let layer = Layer { space: u64::MAX, ..layer(&["z"]) };
        let error = cache.layer(&layer, &StopFlag::default(), |_, _| Ok(())).expect_err("no room");
        assert_eq!(error.code(), 3);
        assert!(error.to_string().contains(DIRECTORY_VARIABLE), "{error}");
    }
}
