//! Holes of a file.
//!
//! Kernel interface: `SEEK_DATA` and `SEEK_HOLE` of lseek(2). They move the position of the open file, which nothing
//! here uses.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;

/// Whether the file's kind can tell. Those that cannot are data everywhere.
pub(crate) fn are_told(file: &File, size: u64) -> bool {
    size > 0 && !matches!(seek(file, SeekFrom::Data(0)), Err(error) if error != Errno::NXIO)
}

/// The first part of a range that is data or a hole; whether it is a hole. What cannot be told is data, whose read then
/// tells what is wrong.
pub(crate) fn first(file: impl AsFd, range: Range<u64>) -> (Range<u64>, bool) {
    let file = file.as_fd();
    let up_to = |end: u64, is_hole| (range.start..end.min(range.end), is_hole);
    match seek(file, SeekFrom::Data(range.start)) {
        Ok(data) if data > range.start => up_to(data, true),
        Ok(_) => match seek(file, SeekFrom::Hole(range.start)) {
            Ok(hole) if hole > range.start => up_to(hole, false),
            _ => (range, false),
        },
        // Nothing but a hole follows, unless the file has become shorter.
        Err(Errno::NXIO) => {
            let len = fstat(file).map_or(0, |stat| stat.st_size.unsigned_abs());
            let is_hole = len >= range.end;
            (range, is_hole)
        }
        Err(_) => (range, false),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn holes_are_told_and_what_is_cut_off_is_none() {
        let file = tempfile::tempfile_in("/var/tmp").expect("a file");
        file.set_len(1 << 20).expect("grows");
        file.write_all_at(&[1; 4096], 1 << 16).expect("writes");
        assert!(are_told(&file, 1 << 20));
        assert_eq!(first(&file, 0..1 << 20), (0..1 << 16, true));
        let (data, is_hole) = first(&file, 1 << 16..1 << 20);
        assert!(!is_hole && data.start == 1 << 16 && data.end >= (1 << 16) + 4096, "{data:?}");
        assert_eq!(first(&file, 1 << 19..1 << 20), (1 << 19..1 << 20, true));
        file.set_len(1 << 18).expect("shrinks");
        assert_eq!(first(&file, 1 << 19..1 << 20), (1 << 19..1 << 20, false));
    }
}
