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
pub(crate) struct Stripped {
    directory: tempfile::TempDir,
    /// The copy of each program.
    made: Mutex<BTreeMap<PathBuf, PathBuf>>,
}

impl Stripped {
    pub(crate) fn new() -> Result<Self> {
        let directory = tempfile::tempdir().trying("temporary directory")?;
        Ok(Self { directory, made: Mutex::default() })
    }

    /// A stripped copy of `program`; the program itself if it is no ELF file or this machine has no
    /// `strip`.
    pub(crate) fn of(&self, program: &Path) -> PathBuf {
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
    pub(crate) fn on_path(&self, program: &Path, name: &OsStr) -> Put {
        Put { source: self.of(program), target: Path::new("/opt/handoff/bin").join(name) }
    }

    /// The workshop, which is this program, and the product, if it is installed, on the guest's path.
    pub(crate) fn programs(&self) -> Vec<Put> {
        // Under our process id: "self" would be whichever program opens it. The path also works for a
        // program that was rebuilt, and so deleted, since it started.
        let workshop = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        let product = companion::find(PRODUCT).map(|path| (path, PRODUCT));
        let programs = [(workshop, WORKSHOP)].into_iter().chain(product);
        programs.map(|(path, name)| self.on_path(&path, OsStr::new(name))).collect()
    }
}
