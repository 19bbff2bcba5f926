//! Programs without their debug information, which is most of their size and useless in a guest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use handoff_sys::companion::{self, PRODUCT, WORKSHOP};

use crate::error::{Result, Trying};
use crate::machine::Put;
use crate::tool;

/// A directory of stripped copies, removed when dropped.
#[derive(Debug)]
pub struct Stripped {
    directory: tempfile::TempDir,
    /// The copy of each program.
    made: Mutex<BTreeMap<PathBuf, PathBuf>>,
}

impl Stripped {
    /// Without any copy yet.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`](crate::Error::Failed) if there can be no temporary directory.
    pub fn new() -> Result<Self> {
        let directory = tempfile::tempdir().trying("temporary directory")?;
        Ok(Self { directory, made: Mutex::default() })
    }

    /// A stripped copy of `program`; the program itself if it is no ELF file or this machine has no
    /// `strip`.
    pub fn of(&self, program: &Path) -> PathBuf {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = made.get(program) {
            return copy.clone();
        }
        let copy = self.directory.path().join(made.len().to_string());
        let mut strip = tool::command("strip");
        strip.arg("--strip-debug").arg("-o").arg(&copy).arg(program);
        strip.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let copy = match strip.status() {
            Ok(status) if status.success() => copy,
            _ => program.to_owned(),
        };
        made.insert(program.to_owned(), copy.clone());
        copy
    }

    /// A program under `name` on the guest's path.
    pub fn on_path(&self, program: &Path, name: &OsStr) -> Put {
        Put { source: self.of(program), target: Path::new("/opt/handoff/bin").join(name) }
    }

    /// The programs of Handoff that are installed, on the guest's path; with this program under the name `ourselves`.
    pub(crate) fn programs(&self, ourselves: Option<&str>) -> Vec<Put> {
        let find = |name| match ourselves == Some(name) {
            // Under our process id: "self" would be whichever program opens it. The path also works for a
            // program that was rebuilt, and so deleted, since it started.
            true => Some(PathBuf::from(format!("/proc/{}/exe", std::process::id()))),
            false => companion::find(name),
        };
        let put = |name| Some(self.on_path(&find(name)?, OsStr::new(name)));
        [PRODUCT, WORKSHOP].into_iter().filter_map(put).collect()
    }
}
