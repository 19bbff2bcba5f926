//! `handoff meter --live` on a terminal, a real one: what stands on its screen meanwhile and at the end.

mod guest {
    use std::fs::{self, File};
    use std::io::{self, Read as _, Write as _};
    use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::ptr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, Signal, kill_process};
    use rustix::termios::tcgetattr;

    const ROWS: u16 = 20;
    const COLUMNS: u16 = 90;
    /// How long anything may take to appear.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Both ends of a terminal.
    struct Terminal {
        ours: File,
        theirs: OwnedFd,
    }

    impl Terminal {
        fn new() -> Self {
            let size = libc::winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
            let (mut ours, mut theirs) = (-1, -1);
            // SAFETY: both numbers may be written to; neither a name nor settings are asked for, and
            // the size is only read.
            let opened = unsafe {
                libc::openpty(&mut ours, &mut theirs, ptr::null_mut(), ptr::null(), &size)
            };
            assert_eq!(opened, 0, "{}", io::Error::last_os_error());
            // SAFETY: the kernel has just opened it for us.
            let ours = unsafe { OwnedFd::from_raw_fd(ours) };
            // SAFETY: likewise.
            let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
            Self { ours: ours.into(), theirs }
        }

        fn output(&self) -> Stdio {
            self.theirs.try_clone().expect("a descriptor").into()
        }

        /// What has been written to it, once something has.
        fn read(&mut self) -> String {
            let mut waiting = [PollFd::new(&self.ours, PollFlags::IN)];
            let moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            if poll(&mut waiting, Some(&moment)).expect("poll works") == 0 {
                return String::new();
            }
            let mut bytes = [0; 1 << 14];
            let length = self.ours.read(&mut bytes).expect("it is open");
            // Nothing that is written is other than ASCII.
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        }
    }

    /// What a terminal shows of all that was written to it.
    fn shown(written: &str) -> Vec<String> {
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

    /// Copies in the kernel while it lives.
    fn copying<T>(work: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut file = tempfile::tempfile_in("/dev/shm").expect("a file");
                while !over.load(Ordering::Relaxed) {
                    file.write_all(&[7; 1 << 16]).expect("written");
                    io::Seek::rewind(&mut file).expect("a file");
                }
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            over.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn meter(arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        command.args(["meter", "--every", "100ms"]).args(arguments).env("TERM", "xterm");
        command
    }

    fn signal(child: &Child, signal: Signal) {
        kill_process(Pid::from_child(child), signal).expect("it runs");
    }

    /// Its end, or none where it can't count.
    fn ended(child: &mut Child) -> Option<ExitStatus> {
        let since = Instant::now();
        loop {
            match child.try_wait().expect("ours") {
                Some(status) => return (status.code() != Some(3)).then_some(status),
                None if since.elapsed() > PATIENCE => {
                    child.kill().expect("ours");
                    panic!("it does not end");
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Of what was moved, the share that was copied, as a view shows it.
    fn share(shown: &[String]) -> Option<f64> {
        let line = shown.iter().find(|line| line.starts_with("copied"))?;
        line.rsplit_once("in all ")?.1.parse().ok()
    }

    #[test]
    fn a_view_is_drawn_and_leaves_the_terminal_as_it_was() {
        let mut terminal = Terminal::new();
        let before = format!("{:?}", tcgetattr(terminal.theirs.as_fd()).expect("a terminal"));
        let mut child = meter(&["--live", "--pid", &std::process::id().to_string()])
            .stdout(terminal.output())
            .stderr(terminal.output())
            .spawn()
            .expect("it starts");
        let mut written = String::new();
        let meanwhile = copying(|| {
            let since = Instant::now();
            loop {
                written.push_str(&terminal.read());
                let shown = shown(&written);
                let drawn = |line: &String| {
                    line.contains("MB/s") && line.contains("copy_folio_from_iter_atomic")
                };
                // Each byte is copied once. The two are read one after the other, and what was counted
                // between weighs less with every picture.
                let once = share(&shown).is_some_and(|share| (0.9..1.1).contains(&share));
                if shown.iter().any(drawn) && once || child.try_wait().expect("ours").is_some() {
                    break shown;
                }
                assert!(since.elapsed() < PATIENCE, "not drawn, or wrong: {shown:#?}");
            }
        });
        if child.try_wait().expect("ours").is_none() {
            signal(&child, Signal::INT);
        }
        let Some(status) = ended(&mut child) else {
            handoff_lab::skip!("{}", written.trim());
        };
        assert!(meanwhile.len() <= usize::from(ROWS), "{meanwhile:#?}");
        assert!(meanwhile.iter().all(|line| line.len() <= COLUMNS.into()), "{meanwhile:#?}");
        let line = |word: &str| meanwhile.iter().find(|line| line.starts_with(word));
        for word in ["moved", "copied"] {
            let line = line(word).unwrap_or_else(|| panic!("no {word}: {meanwhile:#?}"));
            assert!(line.contains("MB/s"), "{line}");
        }

        loop {
            match terminal.read() {
                more if more.is_empty() => break,
                more => written.push_str(&more),
            }
        }
        // The view is gone, and the report stands where it was.
        let shown = shown(&written);
        assert!(shown[0].starts_with("copied ") && shown[0].contains("moved"), "{shown:#?}");
        assert!(!shown.iter().any(|line| line.contains("MB/s")), "{shown:#?}");
        assert!(status.success(), "{status}: {shown:#?}");
        let after = format!("{:?}", tcgetattr(terminal.theirs.as_fd()).expect("a terminal"));
        assert_eq!(before, after, "its settings");
    }

    #[test]
    fn without_a_terminal_there_are_lines() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let errors = File::create(file.path()).expect("a file");
        let mut child = meter(&["--live", "--json"])
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .expect("it starts");
        let since = Instant::now();
        let said = || fs::read_to_string(file.path()).expect("a file");
        while said().lines().count() < 2 && child.try_wait().expect("ours").is_none() {
            assert!(since.elapsed() < PATIENCE, "nothing is said: {:?}", said());
            thread::sleep(Duration::from_millis(20));
        }
        if child.try_wait().expect("ours").is_none() {
            signal(&child, Signal::TERM);
        }
        let Some(status) = ended(&mut child) else { handoff_lab::skip!("{}", said().trim()) };
        assert!(status.success(), "{status}");
        for line in said().lines() {
            assert!(line.starts_with("copied ") && line.contains("MB/s moved"), "{line}");
            assert!(!line.contains('\x1b'), "{line:?}");
        }
    }
}
