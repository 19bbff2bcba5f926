//! A command for a guest, and what came of it.

use std::time::Duration;

use crate::console::Fault;

/// What a command gets as standard input.
#[derive(Debug, Default)]
pub enum Input {
    /// Nothing: end of file at once.
    #[default]
    Empty,
    /// Our own standard input.
    Inherit,
    /// A terminal, connected to ours.
    Terminal,
}

/// A command to run in a guest.
#[derive(Debug, Default)]
pub struct Job {
    /// The program, looked up on the guest's path, and its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// Further environment variables, as `NAME=value`.
    pub environment: Vec<String>,
    /// Standard input.
    pub input: Input,
    /// The command is killed after this time.
    pub timeout: Option<Duration>,
}

impl Job {
    /// A program and its arguments, without input, environment or time-out.
    pub fn new<T: AsRef<[u8]>>(arguments: impl IntoIterator<Item = T>) -> Self {
        let arguments = arguments.into_iter().map(|word| word.as_ref().to_vec()).collect();
        Self { arguments, ..Self::default() }
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// With an exit code.
    Exited(u8),
    /// By a signal.
    Killed(u8),
    /// It could not be started; the reason.
    NotStarted(String),
    /// It was killed at its time-out; the guest lives on.
    TimedOut,
    /// It could not even be killed, and the guest was ended; the last console lines.
    Hung(Vec<String>),
    /// The guest died under it; the last console lines.
    GuestDied(Vec<String>),
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// What the kernel reported about itself meanwhile.
    pub fault: Option<Fault>,
}

impl Outcome {
    /// Whether the command ended with exit code 0 and the kernel had nothing to report.
    pub fn success(&self) -> bool {
        self.ending == Ending::Exited(0) && self.fault.is_none()
    }
}

/// Where a command's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}
