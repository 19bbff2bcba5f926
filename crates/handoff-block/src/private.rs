//! Directories that belong to us alone.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Makes a directory for us alone, whatever the umask, or checks that an existing one is.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_ours(path)? {
        return Err(io::Error::other(format!("{} is somebody else's", path.display())));
    }
    if fs::metadata(path)?.mode() & 0o7777 != 0o700 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Whether this directory is our own.
pub(crate) fn is_ours(path: &Path) -> io::Result<bool> {
    let metadata = fs::symlink_metadata(path)?;
    Ok(metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_ours_alone_or_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("ours");
        fs::DirBuilder::new().mode(0o755).create(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("open to all");
        make_private(&path).expect("ours");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o700);
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("made");
        let error = make_private(&link).expect_err("a link").to_string();
        assert!(error.contains("is somebody else's"), "{error}");
    }
}
