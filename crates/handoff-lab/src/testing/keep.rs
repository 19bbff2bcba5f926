//! The file about a test that failed.

use std::fs;
use std::path::{Path, PathBuf};

/// Writes all that is known of a test that failed; `None` where it could not be written, which is no
/// reason to lose the verdict.
pub(super) fn write(
    directory: &Path,
    place: &str,
    name: &str,
    reason: &str,
    details: &[(&'static str, String)],
) -> Option<PathBuf> {
    let path = directory.join(format!("{place}-{}.log", name.replace("::", ".")));
    let mut text = format!("{name} on {place}\n\n== why it failed\n{}\n", reason.trim_end());
    for (title, detail) in details.iter().filter(|(_, detail)| !detail.trim().is_empty()) {
        text += &format!("\n== {title}\n{}\n", detail.trim_end());
    }
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
    match written {
        Ok(()) => Some(path),
        Err(error) => {
            tracing::warn!("{}: {error}", path.display());
            None
        }
    }
}
