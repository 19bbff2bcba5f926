//! A command for a guest, and its outcome.

use std::fmt;
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
///
/// ```
/// use std::time::Duration;
/// use handoff_lab::Job;
///
/// let job = Job { timeout: Some(Duration::from_secs(30)), ..Job::new(["sh", "-c", "dmesg | tail"]) };
/// ```
#[derive(Debug, Default)]
pub struct Job {
    /// The program, looked up on the guest's path, and its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// Further environment variables, as `NAME=value`.
    pub environment: Vec<String>,
    /// Standard input.
    pub input: Input,
    /// The command is killed after this time; only time that the host leaves to the guest counts.
    pub timeout: Option<Duration>,
    /// Whether to look for leftovers, [`Outcome::left`].
    pub tracks: bool,
}

impl Job {
    /// A program and its arguments, and nothing else.
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
    /// It was killed at its time-out, and the guest lives on. The lines say where the guest's tasks
    /// stood just before; empty if the guest did not answer.
    TimedOut(String),
    /// It could not even be killed, and the guest was ended.
    Hung(Hang),
    /// The guest died while it ran; the last console lines.
    GuestDied(Vec<String>),
}

/// What is known about a guest that hung.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hang {
    /// Where its tasks stood at the command's time-out, in lines; empty if the guest did not answer.
    pub tasks: String,
    /// How much of the time that the host left to the emulator it ran, within its last second, in percent;
    /// `None` if the host's kernel does not report it, and under instruction counting: there the clock of an
    /// idle guest jumps from timer to timer, which keeps the emulator busy.
    pub emulator: Option<u32>,
    /// The last console lines.
    pub lines: Vec<String>,
}

/// The emulator of an idle guest runs for fewer percent of the time; that of a guest that executes anything for
/// nearly all of it.
const IDLE: u32 = 15;

impl fmt::Display for Hang {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(percent) = self.emulator {
            let state = if percent < IDLE { "idle" } else { "busy" };
            writeln!(
                formatter,
                "the emulator was {state}: it ran for {percent} % of the time that others left to it"
            )?;
        }
        writeln!(formatter, "{}", where_tasks_stood(&self.tasks))?;
        write!(formatter, "the last console lines:\n{}", self.lines.join("\n"))
    }
}

/// Where tasks stood, or a note that this is unknown.
pub fn where_tasks_stood(tasks: &str) -> &str {
    if tasks.is_empty() { "the guest did not say where its tasks stood" } else { tasks.trim_end() }
}

/// The outcome of a command.
///
/// [`Guest::run`](crate::Guest::run) returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// What the kernel reported about itself meanwhile.
    pub fault: Option<Fault>,
    /// The mounts, devices, namespaces and files that it left behind, one a line, if the job asked for
    /// them.
    pub left: String,
    /// What the kernel printed meanwhile.
    pub console: Vec<String>,
}

impl Outcome {
    /// Whether the command ended with exit code 0 and the kernel reported nothing.
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
