//! The initramfs: our init and the few modules that it needs to mount a disk, as a `newc` cpio
//! archive (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::fs;
use std::io::Write;

use crate::error::{Result, Trying};
use crate::kernel::Kernel;

/// Our init, built by `build.rs`; empty where the target is not x86-64.
pub(crate) const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// The archive for `kernel`.
pub(crate) fn build(kernel: &Kernel) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for directory in ["dev", "proc", "sys", "new"] {
        entry(&mut archive, directory, DIRECTORY, &[]);
    }
    entry(&mut archive, "init", PROGRAM, INIT);
    let mut list = String::new();
    for path in kernel.boot_modules()? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        entry(&mut archive, &name, FILE, &fs::read(&path).trying(path.display())?);
        list += &format!("/{name}\n");
    }
    entry(&mut archive, "modules", FILE, list.as_bytes());
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    Ok(archive)
}

fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let inode = archive.len() as u32;
    let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
    let links = if mode == DIRECTORY { 2 } else { 1 };
    archive.extend(b"070701");
    // inode, mode, uid, gid, links, mtime, size, device and its target (major, minor), name, check
    for field in [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0] {
        write!(archive, "{field:08x}").expect("writing to memory");
    }
    archive.extend(name.as_bytes());
    archive.push(0);
    align(archive);
    archive.extend(content);
    align(archive);
}

fn align(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_sized() {
        let mut archive = Vec::new();
        entry(&mut archive, "init", PROGRAM, b"12345");
        assert_eq!(archive.len() % 4, 0);
        assert_eq!(&archive[..6], b"070701");
        assert_eq!(&archive[54..62], b"00000005", "size of the content");
        assert_eq!(&archive[110..115], b"init\0");
        assert_eq!(&archive[116..121], b"12345");
    }
}
