//! The file about a failed test.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

/// Writes everything known about a failed test; `None` if it could not be written, which is no reason to
/// lose the verdict.
pub(super) fn write(
    directory: &Path,
    place: &str,
    name: &str,
    reason: &str,
    details: &[(&'static str, String)],
) -> Option<PathBuf> {
    let stem = format!("{place}-{}", name.replace("::", "."));
    // A repeated test may fail again.
    let mut names = iter::once(format!("{stem}.log"))
        .chain((2_u32..).map(|number| format!("{stem}-{number}.log")));
    let path = directory.join(names.find(|name| !directory.join(name).exists())?);
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
