//! The locks by which programs tell each other that they use an image.
//!
//! They belong to the open file, so they stay as long as any process has it open. Any user who may read a
//! file can take some of them; so they keep a file from a new device, and never from the next server of one.
//!
//! Kernel interface: `flock(2)`; locks of open files (`F_OFD_SETLK`), by which QEMU says on which bytes of an
//! image what it does (100 and following) and what others must not do (200 and following).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{FlockOperation, flock};

/// What QEMU says by its locks: it reads, it writes, it changes the size.
const DOES: [i64; 3] = [100, 101, 103];
/// Nobody else may read; nobody else may write or change the size.
const FORBIDS_READING: i64 = 200;
const FORBIDS_WRITING: [i64; 2] = [201, 203];

/// Takes the locks of a file that no other program uses. `reads` says that it is only read, so that others may read it,
/// too, if they say so by QEMU's locks.
///
/// # Errors
///
/// Which program uses it, in words.
pub fn take(file: &OwnedFd, reads: bool) -> Result<(), &'static str> {
    lock_file(file, reads, FlockOperation::NonBlockingLockExclusive)
}

/// Takes the locks of a file that is only read, and that others who take them so may read beside.
///
/// # Errors
///
/// Which program writes it, in words.
pub fn share(file: &OwnedFd) -> Result<(), &'static str> {
    lock_file(file, true, FlockOperation::NonBlockingLockShared)
}

fn lock_file(file: &OwnedFd, reads: bool, whole: FlockOperation) -> Result<(), &'static str> {
    // All file systems that lack these locks lack both.
    match flock(file, whole) {
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
            return Err("another program has locked it (flock)");
        }
        _ => {}
    }
    // First ours, then a look: of two that begin at once, at least one sees the other.
    let ours = DOES.iter().take(if reads { 1 } else { 3 }).chain(&FORBIDS_WRITING);
    ours.for_each(|byte| drop(lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, *byte)));
    let forbidden = FORBIDS_WRITING.iter().filter(|_| !reads);
    let mut wrong = DOES[1..].iter().chain(forbidden).chain([&FORBIDS_READING]);
    let has = |byte: &&i64| {
        lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, **byte).is_ok_and(|kind| kind != libc::F_UNLCK)
    };
    match wrong.any(|byte| has(&byte)) {
        true => Err("a virtual machine (QEMU) has locked it"),
        false => Ok(()),
    }
}

/// Sets or asks for a lock on one byte; returns the kind of lock that the kernel answers.
fn lock(file: &OwnedFd, command: i32, kind: i32, byte: i64) -> io::Result<i32> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the structure lives.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(lock.l_type.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn readers_share_a_file_and_exclude_writers() {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let path = place.path().join("image");
        File::create(&path).expect("a file");
        let open =
            || OwnedFd::from(File::options().read(true).write(true).open(&path).expect("opens"));
        let readers = [open(), open()];
        readers.iter().for_each(|file| share(file).expect("nobody writes it"));
        assert!(take(&open(), false).is_err());
        drop(readers);
        let writer = open();
        take(&writer, false).expect("nobody has it");
        assert!(share(&open()).is_err());
    }

    #[test]
    fn an_image_of_a_virtual_machine_is_known_by_its_locks() {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let path = place.path().join("image");
        File::create(&path).expect("a file");
        let open =
            || OwnedFd::from(File::options().read(true).write(true).open(&path).expect("opens"));
        let qemu = |byte| {
            let file = open();
            lock(&file, libc::F_OFD_SETLK, libc::F_RDLCK, byte).expect("locked");
            file
        };
        for (byte, reads, refused) in [
            (101, false, true),
            (101, true, true),
            (201, false, true),
            // A backup that reads and lets others write; one that lets others read.
            (100, false, false),
            (201, true, false),
        ] {
            let _theirs = qemu(byte);
            assert_eq!(take(&open(), reads).is_err(), refused, "{byte}, {reads}");
        }
        // QEMU sees ours.
        let ours = open();
        take(&ours, false).expect("nobody has it");
        let kind = lock(&open(), libc::F_OFD_GETLK, libc::F_WRLCK, 101).expect("asked");
        assert_eq!(kind, libc::F_RDLCK);
        assert!(take(&open(), false).is_err());
    }
}
