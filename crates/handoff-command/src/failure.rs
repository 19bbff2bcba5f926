//! How a subcommand fails, and the exit code for it.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// How a subcommand failed. The text is one line: the cause, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The attempt failed: exit code 1.
    Failed(String),
    /// The command line, an address or a path makes no sense: exit code 2, as clap's own.
    Usage(String),
    /// This machine, kernel or user cannot do it: exit code 3; the text says why.
    NotPossible(String),
    /// A signal asked for the end and everything was put back: exit code 128 + signal.
    Stopped(i32),
    /// A signal asked for the end, and the current step then failed: exit code 128 + signal; the text says
    /// what failed, usually a call that the signal interrupted.
    CutShort(i32, String),
    /// A command that we ran for the user ended with this code, and has reported its own error.
    Ended(u8),
    /// The reader of our stdout is gone (`handoff ... | head`): ends quietly, as SIGPIPE would.
    ReaderGone,
}

impl Failure {
    /// Tried and failed.
    pub fn failed(cause: impl Display) -> Self {
        Self::Failed(cause.to_string())
    }

    /// Wrong command line or address.
    pub fn usage(cause: impl Display) -> Self {
        Self::Usage(cause.to_string())
    }

    /// Not possible on this machine.
    pub fn not_possible(cause: impl Display) -> Self {
        Self::NotPossible(cause.to_string())
    }

    /// An error from writing a result to stdout.
    pub fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ReaderGone;
        }
        Self::Failed(format!("the result could not be written to stdout: {error}"))
    }

    /// The line for stderr, without the `handoff: ` before it; `None` if there should be none.
    pub fn line(&self) -> Option<String> {
        match self {
            Self::Failed(text) | Self::Usage(text) | Self::NotPossible(text) => {
                Some(one_line(text))
            }
            Self::Stopped(signal) => Some(stopped_by(*signal)),
            Self::CutShort(signal, cause) => {
                Some(one_line(&format!("{}: {cause}", stopped_by(*signal))))
            }
            Self::Ended(_) | Self::ReaderGone => None,
        }
    }

    /// The exit code, as `handoff --help` documents it.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    /// The exit code as a number.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::NotPossible(_) => 3,
            Self::Stopped(signal) | Self::CutShort(signal, _) => {
                128u8.saturating_add(u8::try_from(*signal).unwrap_or(0))
            }
            Self::Ended(code) => *code,
            Self::ReaderGone => 128 + signal_hook::consts::SIGPIPE as u8,
        }
    }
}

/// A foreign cause may span lines; our contract is one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn stopped_by(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("stopped by {name}"),
        None => format!("stopped by signal {signal}"),
    }
}

/// Turns an error into the failure of a subcommand.
pub trait Failed<T> {
    /// With the current step before it.
    fn failed(self, action: &str) -> Result<T, Failure>;
}

impl<T, E: Into<Cause>> Failed<T> for Result<T, E> {
    fn failed(self, action: &str) -> Result<T, Failure> {
        self.map_err(|error| match error.into() {
            Cause::NotPossible(text) => Failure::not_possible(text),
            Cause::Failed(text) => Failure::failed(format!("{action}: {text}")),
        })
    }
}

/// An error in words, with its kind.
pub enum Cause {
    /// The attempt failed.
    Failed(String),
    /// This machine cannot do it.
    NotPossible(String),
}

impl From<handoff::Error> for Cause {
    fn from(error: handoff::Error) -> Self {
        use handoff::Error;
        match error {
            Error::EngineUnavailable { .. } | Error::NoRing { .. } | Error::Memlock { .. } => {
                Self::NotPossible(error.to_string())
            }
            // The step is named already; these numbers say little without what was asked of the kernel.
            Error::Io { action, source } => match source.raw_os_error() {
                Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP) => Self::Failed(format!(
                    "{source}: this kernel, or what is below it, has no {action}"
                )),
                Some(libc::ENOBUFS) => Self::Failed(format!(
                    "{source}: the kernel has no more memory for what is under way (net.core.optmem_max limits \
                     MSG_ZEROCOPY): raise that, or send less at once"
                )),
                _ => source.into(),
            },
            error => Self::Failed(error.to_string()),
        }
    }
}

impl<B> From<handoff::Refused<B>> for Cause {
    fn from(refused: handoff::Refused<B>) -> Self {
        refused.error.into()
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<rustix::io::Errno> for Cause {
    fn from(errno: rustix::io::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<serde_json::Error> for Cause {
    fn from(error: serde_json::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_help() {
        assert_eq!(Failure::failed("x").code(), 1);
        assert_eq!(Failure::usage("x").code(), 2);
        assert_eq!(Failure::not_possible("x").code(), 3);
        assert_eq!(Failure::Stopped(signal_hook::consts::SIGINT).code(), 130);
        assert_eq!(Failure::Stopped(signal_hook::consts::SIGTERM).code(), 143);
        assert_eq!(Failure::CutShort(signal_hook::consts::SIGTERM, String::new()).code(), 143);
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(Failure::failed("a\n  b\n").line().as_deref(), Some("a b"));
        assert_eq!(Failure::Stopped(2).line().as_deref(), Some("stopped by SIGINT"));
        let cut_short = Failure::CutShort(2, "a\nb".to_owned());
        assert_eq!(cut_short.line().as_deref(), Some("stopped by SIGINT: a b"));
    }

    #[test]
    fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
        let closed = Failure::stdout(&io::ErrorKind::BrokenPipe.into());
        assert_eq!((closed.line(), closed.code()), (None, 141));
        let full = Failure::stdout(&io::ErrorKind::StorageFull.into());
        assert_eq!(full.code(), 1);
    }
}
