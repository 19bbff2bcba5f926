//! A terminal, a real one: what is written to it, and what then stands on its screen.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long what is awaited may take.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const ROWS: u16 = 20;
pub(crate) const COLUMNS: u16 = 90;

/// Gives the program a session of its own, whose terminal is its standard input.
pub(crate) fn in_its_own_session(command: &mut Command) {
    // SAFETY: between fork and exec only system calls.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            match libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
}

/// Both ends of a terminal.
pub(crate) struct Terminal {
    pub(crate) ours: File,
    pub(crate) theirs: OwnedFd,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let size = libc::winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut ours, mut theirs) = (-1, -1);
        // SAFETY: both numbers may be written to; neither a name nor settings are asked for, and
        // the size is only read.
        let opened =
            unsafe { libc::openpty(&mut ours, &mut theirs, ptr::null_mut(), ptr::null(), &size) };
        assert_eq!(opened, 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just opened it for us.
        let ours = unsafe { OwnedFd::from_raw_fd(ours) };
        // SAFETY: likewise.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
        // The terminal goes with the last descriptor of this side.
        rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).expect("sets");
        Self { ours: ours.into(), theirs }
    }

    pub(crate) fn output(&self) -> Stdio {
        self.theirs.try_clone().expect("a descriptor").into()
    }

    /// What has been written to it, once something has.
    pub(crate) fn read(&mut self) -> String {
        let mut waiting = [PollFd::new(&self.ours, PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if poll(&mut waiting, Some(&moment)).expect("poll works") == 0 {
            return String::new();
        }
        let mut bytes = [0; 1 << 14];
        let length = self.ours.read(&mut bytes).expect("it is open");
        // A spinner's character that is cut apart is of no account.
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Waits until it shows a line that begins so, and below it the progress; returns what was written so far.
    pub(crate) fn progress_below(&mut self, above: &str) -> String {
        let mut written = String::new();
        let begin = Instant::now();
        loop {
            written.push_str(&self.read());
            let lines = shown(&written);
            let below = lines.iter().skip_while(|line| !line.starts_with(above)).nth(1);
            if below.is_some_and(|line| line.contains(" B/s")) {
                return written;
            }
            assert!(begin.elapsed() < TIMEOUT, "no progress line below '{above}': {lines:?}");
        }
    }

    /// Waits for a line like this.
    pub(crate) fn line(&mut self, what: &str, is_like: impl Fn(&str) -> bool) -> String {
        let mut written = String::new();
        let begin = Instant::now();
        loop {
            written.push_str(&self.read());
            let lines = shown(&written);
            if let Some(line) = lines.iter().find(|line| is_like(line)) {
                return line.clone();
            }
            assert!(begin.elapsed() < TIMEOUT, "{what} is not shown: {lines:?}");
        }
    }

    /// What else was written, until nobody has it open.
    pub(crate) fn rest(mut self) -> String {
        drop(self.theirs);
        let mut rest = Vec::new();
        let ended = self.ours.read_to_end(&mut rest).map_err(|error| error.raw_os_error());
        assert_eq!(ended, Err(Some(libc::EIO)));
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// What a terminal shows of all that was written to it.
pub(crate) fn shown(written: &str) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0_usize, 0);
    let mut rest = written.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '\r' => column = 0,
            '\n' => row += 1,
            '\x1b' => {
                assert_eq!(rest.next(), Some('['), "an escape sequence of another kind");
                let mut number = String::new();
                while let Some(digit) = rest.next_if(|next| !next.is_ascii_alphabetic()) {
                    number.push(digit);
                }
                let count = number.parse().unwrap_or(1);
                match rest.next() {
                    Some('A') => row = row.saturating_sub(count),
                    Some('B') => row += count,
                    Some('K') => lines[row].clear(),
                    Some('J') => lines.truncate(row + 1),
                    Some('m') => {}
                    // Modes would have to be put back.
                    other => panic!("it switches something: {number}{other:?}"),
                }
            }
            other => {
                if column == usize::from(COLUMNS) {
                    (row, column) = (row + 1, 0);
                    lines.resize(lines.len().max(row + 1), Vec::new());
                }
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = other;
                column += 1;
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    let text = |line: Vec<char>| line.into_iter().collect::<String>().trim_end().to_owned();
    lines.into_iter().map(text).collect()
}
