//! `handoff meter --live` on a terminal, a real one: what stands on its screen meanwhile and at the end.

#[allow(dead_code, reason = "each test program uses a part")]
mod terminal;

mod guest {
    use std::fs::{self, File};
    use std::io::{self, Write as _};
    use std::os::fd::AsFd as _;
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};
    use rustix::termios::tcgetattr;

    use crate::terminal::{COLUMNS, ROWS, Terminal, shown};

    /// How long anything may take to appear.
    const TIMEOUT: Duration = Duration::from_secs(120);

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
                None if since.elapsed() > TIMEOUT => {
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
                assert!(since.elapsed() < TIMEOUT, "not drawn, or wrong: {shown:#?}");
            }
        });
        if child.try_wait().expect("ours").is_none() {
            signal(&child, Signal::INT);
        }
        let Some(status) = ended(&mut child) else {
            handoff_testbed::skip!("{}", written.trim());
        };
        assert!(meanwhile.len() <= usize::from(ROWS), "{meanwhile:#?}");
        assert!(meanwhile.iter().all(|line| line.len() <= COLUMNS.into()), "{meanwhile:#?}");
        let line = |word: &str| meanwhile.iter().find(|line| line.starts_with(word));
        for word in ["moved", "copied"] {
            let line = line(word).unwrap_or_else(|| panic!("no {word}: {meanwhile:#?}"));
            assert!(line.contains("MB/s"), "{line}");
        }

        let after = format!("{:?}", tcgetattr(terminal.theirs.as_fd()).expect("a terminal"));
        written.push_str(&terminal.rest());
        // The view is gone, and the report stands where it was.
        let shown = shown(&written);
        assert!(shown[0].starts_with("copied ") && shown[0].contains("moved"), "{shown:#?}");
        assert!(!shown.iter().any(|line| line.contains("MB/s")), "{shown:#?}");
        assert!(status.success(), "{status}: {shown:#?}");
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
        let output = || fs::read_to_string(file.path()).expect("a file");
        while output().lines().count() < 2 && child.try_wait().expect("ours").is_none() {
            assert!(since.elapsed() < TIMEOUT, "nothing is said: {:?}", output());
            thread::sleep(Duration::from_millis(20));
        }
        if child.try_wait().expect("ours").is_none() {
            signal(&child, Signal::TERM);
        }
        let Some(status) = ended(&mut child) else { handoff_testbed::skip!("{}", output().trim()) };
        assert!(status.success(), "{status}");
        for line in output().lines() {
            assert!(line.starts_with("copied ") && line.contains("MB/s moved"), "{line}");
            assert!(!line.contains('\x1b'), "{line:?}");
        }
    }
}
