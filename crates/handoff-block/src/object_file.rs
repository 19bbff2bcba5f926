//! The object of a policy, as somebody names it.
//!
//! Contracts:
//! - who reads it does not wait: a FIFO, a terminal or another device is refused, though it is opened;
//! - what is read has a limit, also where the file grows meanwhile: servers lock their memory.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::Error;

/// The most bytes of an object. Those of the examples have 3 KiB, 9 KiB with what debuggers read.
pub(crate) const MOST: u64 = 4 << 20;

/// Opens an object, and reads it whole.
pub(crate) fn read(path: &Path) -> Result<(File, Vec<u8>), Error> {
    let name = path.display();
    let failed = |error: io::Error| Error::unusable(format!("{name}: {error}")).caused_by(error);
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Error::unusable(format!(
            "{name} is no regular file: name the object that clang -target bpf has written"
        )));
    }
    let mut object = Vec::new();
    // One more than may be: then it is too long, whatever it said of its length.
    (&file).take(MOST + 1).read_to_end(&mut object).map_err(failed)?;
    if object.len() as u64 > MOST {
        return Err(Error::unusable(format!(
            "{name} has more than {MOST} bytes: take away what only debuggers read (llvm-strip -g)"
        )));
    }
    Ok((file, object))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn what_is_no_file_or_has_no_end_is_refused_at_once() {
        let place = tempfile::tempdir().expect("a directory");
        let [fifo, long, object] = ["fifo", "long", "object"].map(|name| place.path().join(name));
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("made");
        File::create(&long).and_then(|file| file.set_len(MOST + 1)).expect("made");
        fs::write(&object, b"bytes").expect("written");
        for (path, said) in [
            (fifo.as_path(), "is no regular file"),
            (Path::new("/dev/zero"), "is no regular file"),
            (place.path(), "is no regular file"),
            (&long, "has more than 4194304 bytes"),
            (&place.path().join("nothing"), "No such file"),
        ] {
            let line = read(path).expect_err("refused").to_string();
            assert!(line.contains(said) && line.contains(&*path.to_string_lossy()), "{line}");
        }
        assert_eq!(read(&object).expect("a file").1, b"bytes");
    }
}
