//! What tells one file from another: more than its inode, whose number a later file gets again.
//!
//! Kernel interface: `statx(2)`, `name_to_handle_at(2)`, `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};

use crate::record::Part;

const OVERLAYFS: u64 = 0x794c_7630;
/// Its handles name a file for as long as the kernel keeps it in memory, so the next server finds another.
const FUSE: u64 = 0x6573_5546;
/// `MAX_HANDLE_SZ`.
const HANDLE_BYTES: usize = 128;

/// `struct file_handle` with room for the longest.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES],
}

/// The identity of a file, which may be open by its path alone.
pub(crate) fn of_file(file: &File, metadata: &Metadata) -> Part {
    let kind = fstatfs(file).map(|system| system.f_type as u64).unwrap_or_default();
    Part {
        device: metadata.dev(),
        inode: metadata.ino(),
        birth: birth(file),
        handle: if kind == FUSE { None } else { handle(file) },
        below: if kind == OVERLAYFS { below(file) } else { None },
        ..Part::default()
    }
}

/// Whether a file lies on overlayfs, and it is not known which file has its bytes.
pub(crate) fn is_veiled(file: BorrowedFd<'_>, part: &Part) -> bool {
    part.below.is_none() && fstatfs(file).is_ok_and(|system| system.f_type as u64 == OVERLAYFS)
}

fn birth(file: &File) -> Option<(i64, u32)> {
    let told = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let birth = told.stx_btime;
    (told.stx_mask & StatxFlags::BTIME.bits() != 0).then_some((birth.tv_sec, birth.tv_nsec))
}

/// The handle in hexadecimal, with its kind.
fn handle(file: &File) -> Option<String> {
    let mut told = Handle { bytes: HANDLE_BYTES as u32, kind: 0, handle: [0; HANDLE_BYTES] };
    let mut mount = 0i32;
    // SAFETY: all pointers are to live values; the handle has room for as many bytes as it says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut told,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    let bytes = told.handle.get(..told.bytes as usize).filter(|_| result == 0)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{}:{digits}", told.kind))
}

/// Device and inode of the file that has the bytes of a file on overlayfs.
fn below(file: &File) -> Option<(u64, u64)> {
    let number = file.as_raw_fd();
    let path = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    let mount = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let places = places(&mounts, mount, &path)?;
    let found = places.into_iter().find_map(|place| fs::symlink_metadata(place).ok())?;
    // What overlayfs calls by other names after a rename is not found so.
    (found.is_file() && found.len() == file.metadata().ok()?.len())
        .then(|| (found.dev(), found.ino()))
}

/// Where the file may lie in the layers of a mount, the topmost first.
fn places(mounts: &str, mount: &str, path: &Path) -> Option<Vec<PathBuf>> {
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let (fields, system) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(3).map(plain);
    let (root, point) = (fields.next()?, fields.next()?);
    let inside = Path::new(&root).strip_prefix("/").ok()?.join(path.strip_prefix(point).ok()?);
    let options = system.split(' ').nth(2)?;
    let (mut upper, mut lower) = (Vec::new(), Vec::new());
    for option in options.split(',') {
        match option.split_once('=') {
            Some(("upperdir", layer)) => upper.push(plain(layer)),
            Some(("lowerdir", layers)) => lower.extend(layers.split(':').map(plain)),
            Some(("lowerdir+", layer)) => lower.push(plain(layer)),
            _ => {}
        }
    }
    Some(upper.into_iter().chain(lower).map(|layer| Path::new(&layer).join(&inside)).collect())
}

/// A word of mountinfo, in which the kernel writes some characters as octal numbers.
fn plain(word: &str) -> OsString {
    let mut bytes = Vec::new();
    let mut rest = word.as_bytes();
    while let [first, more @ ..] = rest {
        let number = more.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        let number = number.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(number.unwrap_or(*first));
        rest = if number.is_some() { &more[3..] } else { more };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_a_mount_are_found() {
        let mounts = "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            36 25 0:44 /sub /a\\040b rw,relatime shared:1 - overlay overlay \
            rw,lowerdir=/l1:/l2,upperdir=/up\\040per,workdir=/w,uuid=on\n";
        let places = places(mounts, "36", Path::new("/a b/c/file")).expect("the mount");
        let expected = ["/up per/sub/c/file", "/l1/sub/c/file", "/l2/sub/c/file"];
        assert_eq!(places, expected.map(PathBuf::from));
        assert_eq!(super::places(mounts, "37", Path::new("/a b/c")), None);
    }

    #[test]
    fn a_new_file_of_an_old_inode_is_another() {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let path = place.path().join("file");
        let identity = || {
            let file = File::create(&path).expect("a file");
            of_file(&file, &file.metadata().expect("there"))
        };
        let first = identity();
        assert!(first.is_same(&identity()), "it is only emptied");
        // A record of before has less.
        let before = Part { birth: None, handle: None, ..first.clone() };
        assert!(first.is_same(&before) && before.is_same(&first));
        fs::remove_file(&path).expect("removed");
        let second = Part { inode: first.inode, device: first.device, ..identity() };
        assert!(!first.is_same(&second), "{first:?} and {second:?}");
    }
}
