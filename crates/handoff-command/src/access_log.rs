//! The access log of a command that serves: a line for each request or connection.
//!
//! Contracts:
//! - a thread of its own writes, so a slow disk or reader delays nobody who is served; what it cannot write in time is left
//!   out, which is said;
//! - lines are appended whole, and a file that was moved away or removed is made anew.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Stdout};
use crate::rate_limit::RateLimit;

/// Lines that may wait to be written.
const WAITING: usize = 8_192;
/// Bytes of lines that are written together.
const TOGETHER: usize = 64 << 10;
/// Between looks whether the file is still the one of that name.
const LOOK: Duration = Duration::from_secs(1);
/// How long the last lines may take.
const LAST: Duration = Duration::from_secs(2);

/// Where a log goes, as every command that serves takes it.
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    /// Append a line for each request or connection to this file; - writes it to standard output
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Form of these lines
    #[arg(long, value_enum, default_value_t = Form::Text, requires = "access_log")]
    access_log_format: Form,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// For people; of requests it is the combined format, which many programs read
    Text,
    /// One JSON value a line
    Json,
}

/// What a line is of.
pub trait Line: Serialize {
    /// For people.
    fn text(&self) -> String;
}

/// The log. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct AccessLog {
    form: Form,
    lines: SyncSender<Entry>,
    left_out: RateLimit,
}

enum Entry {
    Line(String),
    /// Everything before it is written.
    Last(Sender<()>),
}

impl LogArgs {
    /// Opens the log, if one is asked for.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn open(&self) -> Result<Option<AccessLog>, Failure> {
        let Some(path) = &self.access_log else { return Ok(None) };
        let sink = Sink::open(path).map_err(|error| {
            Failure::failed(format!("opening the access log {}: {error}", path.display()))
        })?;
        let (lines, written) = sync_channel(WAITING);
        thread::spawn(move || write_all(sink, &written));
        let more = |count| format!("{count} more lines of the access log were left out");
        let left_out = RateLimit::new(more, output::say);
        Ok(Some(AccessLog { form: self.access_log_format, lines, left_out }))
    }
}

impl AccessLog {
    /// Writes a line, soon.
    pub fn write(&self, of: &impl Line) {
        let line = match self.form {
            Form::Text => of.text(),
            // Texts and numbers always have one.
            Form::Json => serde_json::to_string(of).unwrap_or_default(),
        };
        if self.lines.try_send(Entry::Line(line)).is_err() {
            let why = || "the access log is written too slowly: lines were left out".to_owned();
            self.left_out.now(why).into_iter().for_each(output::say);
        }
    }

    /// Waits a moment for what is still to be written.
    pub fn close(self) {
        let (tell, told) = channel();
        if self.lines.send(Entry::Last(tell)).is_ok() {
            // Whoever reads too slowly misses the rest.
            let _ = told.recv_timeout(LAST);
        }
    }
}

enum Sink {
    Stdout,
    File { path: Arc<Path>, file: File, looked: Instant },
}

impl Sink {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = append(path)?;
        Ok(Self::File { path: path.into(), file, looked: Instant::now() })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = Stdout::lock();
                out.write_all(lines)?;
                out.flush()
            }
            Self::File { path, file, looked } => {
                if looked.elapsed() >= LOOK {
                    *looked = Instant::now();
                    if !is_at(file, path)? {
                        *file = append(path)?;
                    }
                }
                file.write_all(lines)
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

/// Whether that file still has this name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(fs::metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == (own.dev(), own.ino())))
}

fn write_all(mut sink: Sink, lines: &Receiver<Entry>) {
    let more = |count| format!("{count} more times the access log could not be written");
    let failed = RateLimit::new(more, output::say);
    let mut together = Vec::new();
    while let Ok(entry) = lines.recv() {
        let mut next = Some(entry);
        let mut last = None;
        while let Some(entry) = next.take() {
            match entry {
                Entry::Line(line) => {
                    together.extend_from_slice(line.as_bytes());
                    together.push(b'\n');
                }
                Entry::Last(tell) => last = Some(tell),
            }
            if together.len() < TOGETHER && last.is_none() {
                next = lines.try_recv().ok();
            }
        }
        if let Err(error) = sink.write(&together) {
            let line = || format!("the access log can't be written: {error}");
            failed.now(line).into_iter().for_each(output::say);
        }
        together.clear();
        if let Some(tell) = last {
            // It may have waited for long enough.
            let _ = tell.send(());
        }
    }
}

/// A time as in the combined format: `28/Nov/2026:19:23:28 +0000`.
pub fn date(time: SystemTime) -> String {
    let http = httpdate::fmt_http_date(time);
    match http.split([' ', ',']).collect::<Vec<_>>()[..] {
        [_, _, day, month, year, clock, _] => format!("{day}/{month}/{year}:{clock} +0000"),
        _ => http,
    }
}

/// A time for programs.
pub fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Word(&'static str);

    impl Serialize for Word {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(self.0)
        }
    }

    impl Line for Word {
        fn text(&self) -> String {
            self.0.to_owned()
        }
    }

    #[test]
    fn lines_are_appended_also_to_a_file_made_anew() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        fs::write(&path, "before\n").expect("writes");
        let mut sink = Sink::open(&path).expect("opens");
        sink.write(b"one\n").expect("writes");
        assert_eq!(fs::read_to_string(&path).expect("reads"), "before\none\n");
        // As copytruncate of logrotate does.
        File::options().write(true).open(&path).and_then(|it| it.set_len(0)).expect("cuts");
        sink.write(b"two\n").expect("writes");
        assert_eq!(fs::read_to_string(&path).expect("reads"), "two\n");
        fs::rename(&path, place.path().join("log.1")).expect("moves");
        let Sink::File { looked, .. } = &mut sink else { panic!("it is a file") };
        let Some(earlier) = looked.checked_sub(LOOK) else { return };
        *looked = earlier;
        sink.write(b"three\n").expect("writes");
        assert_eq!(fs::read_to_string(&path).expect("reads"), "three\n");
    }

    #[test]
    fn all_lines_are_there_when_it_is_closed() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        for (form, expected) in [(Form::Text, "word\n"), (Form::Json, "\"word\"\n")] {
            let args = LogArgs { access_log: Some(path.clone()), access_log_format: form };
            let log = args.open().expect("opens").expect("is asked for");
            (0..100).for_each(|_| log.write(&Word("word")));
            log.close();
            assert_eq!(fs::read_to_string(&path).expect("reads"), expected.repeat(100));
            fs::remove_file(&path).expect("removes");
        }
    }

    #[test]
    fn times_are_written_as_others_write_them() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_007);
        assert_eq!(date(then), "09/Sep/2001:01:46:40 +0000");
        assert_eq!(time(then), "2001-09-09T01:46:40.007Z");
    }
}
