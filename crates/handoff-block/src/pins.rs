//! Where maps of policies are pinned, so that they outlive a server.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};

use crate::error::Error;
use crate::private::{is_ours, make_private};

const BPF_FS: &str = "/sys/fs/bpf";
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Where the maps of a device's policy are pinned.
pub fn pins(id: u32) -> PathBuf {
    Path::new(BPF_FS).join(format!("handoff-blk-{id}"))
}

/// Prepares a directory of our own for pinned maps. Maps of a new device start anew.
pub(crate) fn make(id: u32, is_new: bool) -> Result<PathBuf, Error> {
    let failed = || Error::doing(format!("maps cannot be kept in {BPF_FS}"));
    let is_bpf = statfs(BPF_FS).is_ok_and(|fs| fs.f_type as u64 == BPF_FS_MAGIC);
    if !is_bpf {
        mount("bpf", BPF_FS, "bpf", MountFlags::empty(), Some(c"mode=0700"))
            .map_err(|error| failed()(error.into()))?;
    }
    let directory = pins(id);
    make_private(&directory).map_err(failed())?;
    if is_new {
        keep(id, &[]);
    }
    Ok(directory)
}

/// The names of the pinned maps.
pub(crate) fn pinned(id: u32) -> Vec<OsString> {
    let entries = fs::read_dir(pins(id)).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

/// Removes the pins of all other maps. Missing pins are no error.
pub(crate) fn keep(id: u32, maps: &[OsString]) {
    for map in pinned(id).iter().filter(|map| !maps.contains(map)) {
        let _ = fs::remove_file(pins(id).join(map));
    }
}

pub(crate) fn are_ours(id: u32) -> bool {
    is_ours(&pins(id)).is_ok_and(|ours| ours)
}

/// Removes the pins, if they are our own.
pub(crate) fn remove(id: u32) {
    if are_ours(id) {
        keep(id, &[]);
        let _ = fs::remove_dir(pins(id));
    }
}
