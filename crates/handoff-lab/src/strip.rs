//! Programs without their debug information, which is most of their size and of no use in a guest.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Result, Trying};
use crate::machine::Put;
use crate::tool;

/// A directory of stripped copies, removed when dropped.
#[derive(Debug)]
pub(crate) struct Stripped {
    directory: tempfile::TempDir,
    made: AtomicUsize,
}

impl Stripped {
    pub(crate) fn new() -> Result<Self> {
        let directory = tempfile::tempdir().trying("temporary directory")?;
        Ok(Self { directory, made: AtomicUsize::new(0) })
    }

    /// A stripped copy of `program`; the program itself where it is no ELF file or this machine
    /// has no `strip`.
    pub(crate) fn of(&self, program: &Path) -> PathBuf {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let copy = self.directory.path().join(number.to_string());
        let mut strip = tool::command("strip");
        strip.arg("--strip-debug").arg("-o").arg(&copy).arg(program);
        strip.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match strip.status() {
            Ok(status) if status.success() => copy,
            _ => program.to_owned(),
        }
    }

    /// A program under `name` on the guest's path.
    pub(crate) fn on_path(&self, program: &Path, name: &OsStr) -> Put {
        Put { source: self.of(program), target: Path::new("/opt/handoff/bin").join(name) }
    }

    /// This program as `handoff` on the guest's path.
    pub(crate) fn ourselves(&self) -> Put {
        // Under our own number: "self" would be whichever program opens it. This path also leads
        // to a program that was rebuilt, and so deleted, since it started.
        let path = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        self.on_path(&path, OsStr::new("handoff"))
    }
}
