//! The log of the processes behind a device.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use handoff_block::Files;
use handoff_block::state::{DIRECTORY, Directory, Held, make_base};
use handoff_command::Failure;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};

/// Makes this process and those that it starts log to a file. The file gets its name only with a device, so
/// that nothing is left if there never is one.
pub(super) fn open() -> Result<File, Failure> {
    let made = make_base().and_then(|()| {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let log = rustix::fs::open(DIRECTORY, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::stdio::dup2_stderr(&log)?;
        Ok(log.into())
    });
    made.map_err(|error| Failure::failed(format!("{DIRECTORY}: {error}")))
}

/// Gives the log its name.
pub(super) fn name(log: &File, id: u32) -> Result<(), Failure> {
    let path = Directory::of(id).log_path();
    let named = || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::fs::linkat(log, "", CWD, &path, AtFlags::EMPTY_PATH)?;
        // A page of it can now be held.
        writeln!(&mut &*log, "device {id}")
    };
    named().map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

/// Closes the pipe to whoever started this.
pub(super) fn let_go_of_stdout() -> Result<(), Failure> {
    let null = File::options().write(true).open("/dev/null");
    null.and_then(|null| Ok(rustix::stdio::dup2_stdout(&null)?))
        .map_err(|error| Failure::failed(format!("/dev/null: {error}")))
}

/// The supervisor's log, and what is held in memory for the device, including the log's current page. While
/// the device has no server, a page swapped out to it cannot come back.
pub(super) struct Log<'a> {
    directory: &'a Directory,
    files: &'a Files,
    held: Held,
    /// Whether something is not held that should be.
    lacks: bool,
}

impl<'a> Log<'a> {
    pub(super) fn of(directory: &'a Directory, files: &'a Files) -> Self {
        let mut log = Self { directory, files, held: Held::default(), lacks: false };
        log.hold();
        log
    }

    /// Each process that ends behind a device is followed by such a line, so this is where the log is kept short.
    pub(super) fn say(&mut self, what: &str) {
        tracing::warn!("{what}");
        // If there is no descriptor for it now, there is next time.
        if let Ok(log) = File::options().read(true).write(true).open(self.directory.log_path()) {
            let _ = shorten(&log, io::stderr());
        }
        self.hold();
    }

    /// Holds the current files. If some were removed, puts back those that it held.
    pub(super) fn hold(&mut self) {
        match self.files.put_back(&self.held) {
            Ok(true) => tracing::warn!("what was removed of the device's directory is back"),
            Ok(false) => {}
            Err(error) => tracing::warn!("the device has no directory, and goes on: {error}"),
        }
        self.lacks = !self.directory.hold(&mut self.held);
    }

    /// Whether something could not be held, and must be tried again.
    pub(super) fn lacks(&self) -> bool {
        self.lacks
    }
}

/// The length from which on a log is made shorter: it lies in memory.
const MOST: u64 = 1 << 20;
/// How much of its end then stays.
const KEPT: u64 = 256 << 10;
/// What it then begins with.
const MARK: &str = "earlier lines are gone\n";

/// Keeps the end of a log that has become too long, in place, and without memory of its own. `writer` is where all
/// processes of the device write, from one position that they share. What a server writes meanwhile may be lost.
fn shorten(log: &File, writer: impl AsFd) -> io::Result<()> {
    let (here, there) = (log.metadata()?, rustix::fs::fstat(&writer)?);
    let len = here.len();
    if len <= MOST || (here.dev(), here.ino()) != (there.st_dev, there.st_ino) {
        return Ok(());
    }
    let mut bytes = [0; 4096];
    let mut from = len - KEPT;
    let read = log.read_at(&mut bytes, from)?;
    let rest_of_line = bytes[..read].iter().position(|byte| *byte == b'\n');
    from += rest_of_line.map_or(0, |at| at as u64 + 1);
    log.write_all_at(MARK.as_bytes(), 0)?;
    let mut to = MARK.len() as u64;
    while from < len {
        let read = log.read_at(&mut bytes, from)?;
        if read == 0 {
            break;
        }
        log.write_all_at(&bytes[..read], to)?;
        from += read as u64;
        to += read as u64;
    }
    rustix::fs::seek(&writer, SeekFrom::Start(to))?;
    log.set_len(rustix::fs::tell(&writer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_that_is_too_long_the_end_stays_and_what_follows_joins_it() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        let mut supervisor = File::create(&path).expect("made");
        // As a server inherits it.
        let mut server = supervisor.try_clone().expect("the same position");
        let log = File::options().read(true).write(true).open(&path).expect("opened");
        let mut number = 0;
        for _ in 0..3 {
            while log.metadata().expect("a file").len() <= MOST {
                shorten(&log, &supervisor).expect("not yet");
                for writer in [&mut supervisor, &mut server] {
                    let lines = number..number + 1000;
                    let text: String = lines.map(|at| format!("line {at:050}\n")).collect();
                    writer.write_all(text.as_bytes()).expect("written");
                    number += 1000;
                }
            }
            shorten(&log, &supervisor).expect("shortened");
            writeln!(server, "line {number:050}").expect("written");
            number += 1;
            let text = fs::read_to_string(&path).expect("text");
            assert!((KEPT - 4096..KEPT + 4096).contains(&(text.len() as u64)), "{}", text.len());
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some(MARK.trim_end()));
            let numbers = lines.map(|line| line.strip_prefix("line ").expect("a whole line"));
            let numbers: Vec<u32> = numbers.map(|text| text.parse().expect("a number")).collect();
            let first = numbers[0];
            assert!(numbers.into_iter().eq(first..number));
        }
    }

    #[test]
    fn a_file_that_is_not_the_log_is_left_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let make = |name: &str| {
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).open(place.path().join(name));
            file.and_then(|file| file.set_len(MOST + 1).map(|()| file)).expect("made")
        };
        let (log, other) = (make("log"), make("other"));
        shorten(&log, &other).expect("nothing is done");
        assert_eq!(log.metadata().expect("a file").len(), MOST + 1);
        assert_eq!(other.metadata().expect("a file").len(), MOST + 1);
    }
}
