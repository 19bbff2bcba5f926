//! A copy over TLS: its KEY, how the other end gets it, and what the listener needs to try again.
//!
//! Contracts:
//! - the listener prints the KEY once, when it listens: on standard error, or into a new file that only its user may
//!   read, which goes with the command; no log has it;
//! - from the moment that there is a KEY, the process leaves no core (`PR_SET_DUMPABLE`).

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use handoff_command::{Context, Failure, output, progress};
use handoff_net::address::{Address, Endpoint};
use handoff_net::deadline::Deadline;
use handoff_net::reach::Listener;
use rustix::fs::fstat;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use zeroize::Zeroizing;

use crate::args::Args;
use crate::lock::Lock;
use crate::typed;

/// What a copy over TLS has beside its order.
pub(crate) struct Secured {
    pub(crate) lock: Lock,
    /// With the KEY, where that is not printed.
    _file: Option<KeyFile>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where it has listened, with the port that it was given.
    port: Option<u16>,
    /// The socket that systemd has passed, for the next try.
    passed: Option<Listener>,
}

/// A file of ours, which goes with this.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(path: &Path, text: &str) -> Result<Self, Failure> {
        let wrong = |error| Failure::failed(format!("{} (--key-file): {error}", path.display()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path).map_err(wrong)?;
        let made = Self(path.to_owned());
        writeln!(&file, "{text}").map_err(wrong)?;
        Ok(made)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        // The KEY in it is used, or will never be.
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether standard error goes into the system's journal.
fn is_logged() -> bool {
    let Some(journal) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let stderr = fstat(rustix::stdio::stderr());
    stderr.is_ok_and(|it| *journal == *format!("{}:{}", it.st_dev, it.st_ino))
}

impl Secured {
    /// The KEY of these sides, made or asked for; `None` if neither of them is ciphered.
    ///
    /// # Errors
    ///
    /// Those of [`typed::key`] and [`Lock::make`].
    pub(crate) fn of(
        args: &Args,
        context: &Context,
        sides: [&Address; 2],
    ) -> Result<Option<Self>, Failure> {
        let Some(side) = sides.into_iter().find(|side| side.is_tls()) else { return Ok(None) };
        // It fails on no kernel; a core would have the KEY, and what the KEY opens.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let (lock, file) = match side.listens() {
            true if args.key_file.is_none() && (context.json || is_logged()) => {
                return Err(Failure::usage(
                    "what a service, or a command with --json, says may be logged, and a KEY must not be: give \
                     --key-file FILE, a new file for it",
                ));
            }
            true => {
                let lock = Lock::make()?;
                // It is there before anybody can connect.
                let made = |path: &PathBuf| KeyFile::new(path, &lock.key().text());
                let file = args.key_file.as_ref().map(made).transpose()?;
                (lock, file)
            }
            false => (Lock::with(typed::key(args.key_file.as_deref(), &context.stop)?), None),
        };
        Ok(Some(Self { lock, _file: file, state: Mutex::default() }))
    }

    /// Listens, at the same port each time.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::bind`].
    pub(crate) fn bind(
        &self,
        args: &Args,
        endpoint: &Endpoint,
        deadline: Deadline<'_>,
    ) -> Result<Listener, Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = match state.passed.take() {
            Some(passed) => passed,
            None => {
                let port = state.port.unwrap_or(endpoint.port);
                let endpoint = Endpoint { port, ..endpoint.clone() };
                let addresses = &args.addresses;
                Listener::bind(&endpoint, addresses.family(), addresses.from(), deadline)?
            }
        };
        state.passed = listener.passed_again()?;
        Ok(listener)
    }

    /// Says where it listens and, the first time, what to type at the other end.
    pub(crate) fn announce(&self, args: &Args, address: SocketAddr, sends: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        output::say(format_args!("listening on tls://{address}"));
        if state.port.replace(address.port()).is_some() {
            return;
        }
        let host = match address.ip() {
            ip if !ip.is_unspecified() => ip.to_string(),
            _ => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        };
        let peer = Endpoint { host, port: address.port() };
        let streams = match args.streams {
            1 => String::new(),
            streams => format!("--streams {streams} "),
        };
        let command = match sends {
            true => format!("handoff cp {streams}tls://{peer} DEST"),
            false => format!("handoff cp {streams}FILE tls://{peer}"),
        };
        output::print_aside(format_args!("on the other machine type: {command}"));
        match &args.key_file {
            Some(path) => output::print_aside(format_args!(
                "its KEY is in {}; there, give it by --key-file or type it",
                path.display()
            )),
            None => {
                // It never grows, which would leave a copy behind.
                let mut line = Zeroizing::new(String::with_capacity(256));
                let key = self.lock.key().text();
                let _ = writeln!(line, "its KEY, for one transfer: {}", *key);
                // Without a reader there is nobody to tell.
                progress::above(|| drop(io::stderr().write_all(line.as_bytes())));
            }
        }
    }
}
