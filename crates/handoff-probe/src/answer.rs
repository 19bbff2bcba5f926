//! The answers of probes, and their names.

use std::borrow::Cow;
use std::fmt;

/// Whether a mechanism works here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A trial worked, or the kernel says so.
    Yes,
    /// It is missing, or this user may not use it.
    No,
    /// The probe could not find out.
    Unknown,
}

impl State {
    /// `yes`, `no` or `unknown`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The part of the project that a mechanism belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum System {
    /// io_uring itself.
    Ring,
    /// What containers and rootless engines take away.
    Confinement,
    /// Locked and huge memory.
    Memory,
    /// User memory to sockets.
    Send,
    /// Sockets to user memory.
    Receive,
    /// Ciphered connections.
    Tls,
    /// Page cache and pipes.
    File,
    /// Reliable datagrams.
    Rds,
    /// ublk and its BPF loop.
    Block,
    /// The copy witness.
    Meter,
    /// What the benches and the demo use.
    Bench,
    /// What the lab needs.
    Lab,
    /// A network interface.
    Interface,
}

impl System {
    /// A heading for a table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Confinement => "container",
            Self::Memory => "memory",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Tls => "tls",
            Self::File => "files",
            Self::Rds => "rds",
            Self::Block => "block",
            Self::Meter => "copy meter",
            Self::Bench => "benches",
            Self::Lab => "lab",
            Self::Interface => "interfaces",
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The answer about one mechanism.
///
/// ```
/// use handoff_probe::{State, all};
///
/// for missing in all().iter().filter(|capability| capability.state == State::No) {
///     println!("{}: {}", missing.mechanism, missing.reason.as_deref().unwrap_or("no reason"));
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The part of the project.
    pub system: System,
    /// Its usual name, stable across releases.
    pub mechanism: Cow<'static, str>,
    /// Whether it works here.
    pub state: State,
    /// Why not, why unknown, or a detail.
    pub reason: Option<String>,
    /// A remedy.
    pub remedy: Option<String>,
    /// The first mainline kernel that has it, for the reader; distributions backport mechanisms.
    pub needs_kernel: Option<&'static str>,
}

/// The result of a single probe; the table of probes has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) state: State,
    pub(crate) reason: Option<String>,
    pub(crate) remedy: Option<String>,
}

impl Answer {
    pub(crate) fn yes() -> Self {
        Self { state: State::Yes, reason: None, remedy: None }
    }

    pub(crate) fn no(reason: impl Into<String>) -> Self {
        Self { state: State::No, reason: Some(reason.into()), remedy: None }
    }

    pub(crate) fn unknown(error: impl Into<String>) -> Self {
        Self { state: State::Unknown, reason: Some(error.into()), remedy: None }
    }

    pub(crate) fn detail(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    pub(crate) fn in_one_line(self) -> String {
        [self.reason, self.remedy].into_iter().flatten().collect::<Vec<_>>().join("; remedy: ")
    }
}

/// A finding; an `Err` is an answer too, from an earlier step.
pub(crate) type Finding = Result<Answer, Answer>;

/// The answer of a probe, with its data from the table.
pub(crate) fn named(
    system: System,
    mechanism: Cow<'static, str>,
    needs_kernel: Option<&'static str>,
    answer: Answer,
) -> Capability {
    let Answer { state, reason, mut remedy } = answer;
    if state == State::No && remedy.is_none() {
        remedy = needs_kernel.map(|version| format!("a kernel that has it: Linux {version} on"));
    }
    Capability { system, mechanism, state, reason, remedy, needs_kernel }
}
