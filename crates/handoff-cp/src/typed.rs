//! Where the KEY comes from at the end that connects: a file, the environment, or the terminal.
//!
//! Contracts:
//! - it is never an argument, which process lists show;
//! - a file that others may read or change is refused;
//! - the terminal shows nothing of it, and is as before afterwards, also after a signal;
//! - all memory that held it is zeroed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use handoff_command::{Failure, Stop, output};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::key::Key;

/// The variable that it may be in.
pub(crate) const VARIABLE: &str = "HANDOFF_KEY";

/// More than any KEY has, however it is spaced.
const MOST: usize = 512;

/// How often somebody may type it.
const TRIES: usize = 3;

/// Between looks at the stop.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The KEY, of the file if one is named.
///
/// # Errors
///
/// [`Failure::Usage`] if there is none, or it is mistyped; the stop.
pub(crate) fn key(file: Option<&Path>, stop: &Stop) -> Result<Key, Failure> {
    if let Some(path) = file {
        let text = of_file(path)?;
        return Key::parse(&text)
            .map_err(|mistake| Failure::usage(format!("{}: {mistake}", path.display())));
    }
    if let Some(text) = std::env::var_os(VARIABLE) {
        let text = Zeroizing::new(text.into_encoded_bytes());
        return Key::parse(&String::from_utf8_lossy(&text))
            .map_err(|mistake| Failure::usage(format!("{VARIABLE}: {mistake}")));
    }
    let terminal = File::options().read(true).write(true).open("/dev/tty").map_err(|_| {
        Failure::usage(format!(
            "no KEY: there is no terminal to ask for it, so give it in {VARIABLE} or by --key-file FILE"
        ))
    })?;
    let mut tries = 1;
    loop {
        match Key::parse(&asked(&terminal, stop)?) {
            Ok(key) => return Ok(key),
            Err(mistake) if tries < TRIES => output::say(mistake),
            Err(mistake) => return Err(Failure::usage(mistake)),
        }
        tries += 1;
    }
}

fn of_file(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("{} (--key-file): {why}", path.display()))
    };
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mode = file.metadata().map_err(|error| wrong(&error))?.mode();
    // Whoever changes it could be the other end.
    if mode & 0o006 != 0 {
        return Err(wrong(&"other users may read or change it: chmod 600 it, and make a new KEY"));
    }
    let mut bytes = Zeroizing::new([0; MOST]);
    let mut len = 0;
    while len < MOST {
        match (&file).read(&mut bytes[len..]).map_err(|error| wrong(&error))? {
            0 => break,
            read => len += read,
        }
    }
    let text = std::str::from_utf8(&bytes[..len]).map_err(|_| wrong(&"there is no KEY in it"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// A terminal that does not show what is typed, until this is dropped.
struct Unseen<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Unseen<'a> {
    fn begin(terminal: &'a File) -> rustix::io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Flush, &unseen)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        // Also what was typed too much goes, before a shell reads it.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
        // The end of the line was not shown either.
        let _ = writeln!(&mut self.terminal);
    }
}

/// What somebody types in a line.
fn asked(terminal: &File, stop: &Stop) -> Result<Zeroizing<String>, Failure> {
    const ASKING: &str = "asking for the KEY";
    let failed = |error: std::io::Error| Failure::failed(format!("{ASKING}: {error}"));
    let _unseen = Unseen::begin(terminal).map_err(|error| failed(error.into()))?;
    let mut shown = terminal;
    write!(shown, "KEY (not shown): ").map_err(failed)?;
    let mut bytes = Zeroizing::new([0; MOST]);
    let mut len = 0;
    loop {
        stop.check()?;
        let mut typed = [PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::IN)];
        match poll(&mut typed, Some(&LOOK_AGAIN)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let read = (&mut &*terminal).read(&mut bytes[len..]).map_err(failed)?;
        len += read;
        let line = bytes[..len].iter().position(|byte| *byte == b'\n');
        if line.is_some() || read == 0 || len == MOST {
            // A character that is none is none of a KEY either.
            let text = String::from_utf8_lossy(&bytes[..line.unwrap_or(len)]);
            return Ok(Zeroizing::new(text.into_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::key::name_of;

    #[test]
    fn a_file_that_others_may_read_or_change_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        let key = Key::new(name_of(b"")).expect("random bits");
        fs::write(&path, format!("{}\n", *key.text())).expect("writes");
        let stop = Stop::new().expect("a pair");
        for (mode, taken) in
            [(0o600, true), (0o400, true), (0o640, true), (0o644, false), (0o602, false)]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("sets");
            let read = self::key(Some(&path), &stop);
            assert_eq!(read.is_ok(), taken, "{mode:o}");
            if let Err(failure) = read {
                let line = failure.line().expect("a line");
                assert!(line.contains("chmod 600"), "{line}");
            }
        }
    }
}
