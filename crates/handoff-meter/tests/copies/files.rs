//! Files without a name, written and read in pieces.

use std::fs::File;
use std::io::{Read, Write};

use crate::counting::{PIECE, SIZE};

/// A file without a name.
pub(crate) fn file_in(directory: &str) -> File {
    tempfile::tempfile_in(directory).expect("a file")
}

pub(crate) fn filled_file_in(directory: &str) -> File {
    let mut file = file_in(directory);
    write_all(&mut file);
    rewind(&mut file);
    file
}

pub(crate) fn rewind(file: &mut File) {
    std::io::Seek::rewind(file).expect("a file");
}

pub(crate) fn write_all(to: &mut impl Write) {
    let piece = vec![7; PIECE];
    for _ in 0..SIZE / PIECE {
        to.write_all(&piece).expect("written");
    }
}

pub(crate) fn read_all(from: &mut impl Read) {
    let mut piece = vec![7; PIECE];
    for _ in 0..SIZE / PIECE {
        from.read_exact(&mut piece).expect("read");
    }
}
