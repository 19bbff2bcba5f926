//! A file that opens, and whose reads no server answers. Cancelling does not end them: they wait for the server.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Result, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::{self, JoinHandle};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
/// Without it, who submits a read waits for its answer.
const ASYNC_READ: u32 = 1;

/// The server, and the file that it serves. The thread ends with the first read; who drops what it gives ends the read.
pub(crate) struct Unanswered {
    pub(crate) file: File,
    pub(crate) server: JoinHandle<File>,
}

impl Unanswered {
    pub(crate) fn new() -> Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let place = std::env::temp_dir().join(format!("handoff-unanswered-{}", std::process::id()));
        fs::write(&place, [])?;
        let opened = Self::mounted(device, &place);
        fs::remove_file(&place)?;
        opened
    }

    /// Opens the file where it is mounted for a moment.
    fn mounted(device: File, place: &Path) -> Result<Self> {
        let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options)?;
        mount("fuse", place, "fuse", MountFlags::empty(), Some(options.as_c_str()))?;
        let server = thread::spawn(move || serve(device));
        let file = File::open(place);
        unmount(place, UnmountFlags::DETACH)?;
        Ok(Self { file: file?, server })
    }
}

/// Answers until somebody reads the file.
fn serve(mut device: File) -> File {
    let mut request = vec![0; 1 << 18];
    loop {
        let len = device.read(&mut request).unwrap();
        assert!(len >= 40, "a request has a head");
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let answer = match number(4) {
            READ => return device,
            // Version 7.31; it may be asked to read ahead; the longest write.
            INIT => words(&[(0, 7), (4, 31), (8, 1 << 17), (12, ASYNC_READ), (20, 4096)], 64),
            OPEN => words(&[], 16),
            // A regular file of a page.
            GETATTR => words(&[(16, 1), (24, 4096), (76, libc::S_IFREG | 0o444), (80, 1)], 104),
            _ => Vec::new(),
        };
        let error = if answer.is_empty() { -libc::ENOSYS } else { 0 };
        let mut whole = (16 + answer.len() as u32).to_ne_bytes().to_vec();
        whole.extend(error.to_ne_bytes());
        whole.extend(&request[8..16]);
        whole.extend(answer);
        // A request that needs no answer takes none.
        let _ = device.write(&whole);
    }
}

/// An answer's body of so many bytes, with these words in it.
fn words(words: &[(usize, u32)], len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    for (at, word) in words {
        body[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    body
}
