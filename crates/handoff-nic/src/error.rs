//! Why an interface cannot be prepared: one line each, with the cause and the remedy.

use std::io;
use std::path::PathBuf;

use handoff_sys::netlink::Refusal;

/// An error of this crate.
///
/// ```
/// use handoff_nic::{Error, ErrorKind, Nic};
///
/// let error = Nic::look("no such card").unwrap_err();
/// if let Error::NoInterface { name, .. } = &error {
///     assert_eq!(name, "no such card");
///     assert_eq!(error.kind(), ErrorKind::Usage);
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call, the kernel or the driver refused something.
    #[error("{action}: {}", in_words(message.as_deref(), source))]
    Io {
        /// What was being done.
        action: String,
        /// What the kernel or the driver says about it.
        message: Option<String>,
        /// The error number.
        #[source]
        source: io::Error,
    },
    /// It takes privileges that this process does not have.
    #[error("{reason}")]
    NotAllowed {
        /// What was being done, and what it takes.
        reason: String,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A plan or an argument that makes no sense, with the reason.
    #[error("{0}")]
    Invalid(String),
    /// No interface has this name.
    #[error("no network interface \"{name}\"; here are: {here}")]
    NoInterface {
        /// The name.
        name: String,
        /// The names of those that there are.
        here: String,
    },
    /// There is no such network namespace.
    #[error("{reason}")]
    NoNamespace {
        /// What was looked for.
        reason: String,
    },
    /// The interface went meanwhile.
    #[error("{name} is gone")]
    Gone {
        /// Its name.
        name: String,
    },
    /// The machine, the interface or its driver cannot do it.
    #[error("{reason}")]
    NotPossible {
        /// What stands in the way, and what would help.
        reason: String,
        /// What the kernel answered, if it was asked.
        #[source]
        source: Option<io::Error>,
    },
    /// Somebody has prepared the interface, or is about to prepare or restore it.
    #[error("{name} {holder}")]
    Held {
        /// The interface's name.
        name: String,
        /// Who has it, and how to end that.
        holder: String,
    },
    /// There is nothing to restore.
    #[error("{reason}")]
    NotPrepared {
        /// Which interface is not prepared.
        reason: String,
    },
    /// The interface was put back, or left to others, meanwhile.
    #[error("{name} is not prepared any more")]
    NoLongerPrepared {
        /// Its name.
        name: String,
    },
    /// Another rule decides about a flow.
    #[error("{reason}")]
    OtherRule {
        /// The rule's place in the table.
        location: u32,
        /// What the rule does, and how to delete it.
        reason: String,
    },
    /// The interface's table of rules is full.
    #[error("{interface}: {change}: the table of rules is full: ethtool -n {interface}")]
    RulesFull {
        /// The interface's name.
        interface: String,
        /// The rule that has no place.
        change: String,
        /// What the driver answered.
        #[source]
        source: io::Error,
    },
    /// A device that is to be made exists.
    #[error("{reason}")]
    DeviceExists {
        /// Its name.
        device: String,
        /// Whose it may be, and the way out.
        reason: String,
    },
    /// Queues may not be given back: somebody has bound them, or nobody knows.
    #[error("{reason}")]
    Bound {
        /// Which queues, and what to do.
        reason: String,
    },
    /// The driver took a setting, and did not set it.
    #[error("{reason}")]
    NotSet {
        /// Which setting, and how it is.
        reason: String,
    },
    /// Not everything could be put back.
    #[error("{interface}: {failed}; what is left to put back is in {}: handoff nic restore {interface}", record.display())]
    NotPutBack {
        /// The interface's name.
        interface: String,
        /// What could not be put back, and why.
        failed: String,
        /// The record of it.
        record: PathBuf,
    },
    /// The record of a prepared interface cannot be used.
    #[error("{} {fault}", path.display())]
    Record {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// A step failed, and the steps before it were undone as far as that was possible.
    #[error("{failed}; {undone}")]
    Undone {
        /// Why the step failed.
        #[source]
        failed: Box<Self>,
        /// What became of the steps before.
        undone: String,
    },
}

/// What an error says about another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense: change it.
    Usage,
    /// This machine, interface or user cannot do it.
    NotPossible,
    /// The attempt failed.
    Failed,
}

impl Error {
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(reason.into())
    }

    pub(crate) fn not_possible(reason: impl Into<String>) -> Self {
        Self::NotPossible { reason: reason.into(), source: None }
    }

    /// For `map_err`: what was being done, and the kernel's answer.
    pub(crate) fn doing<E: Into<Refusal>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = what.into();
        move |refusal| {
            let refusal = refusal.into();
            let lacks = refusal.is(rustix::io::Errno::PERM.raw_os_error());
            let Refusal { error: source, message } = refusal;
            match lacks {
                true => {
                    let reason = format!("{action} takes CAP_NET_ADMIN: run as root");
                    Self::NotAllowed { reason, source }
                }
                false => Self::Io { action, message, source },
            }
        }
    }

    /// The same error, with what became of the steps before it.
    pub(crate) fn after_undoing(self, undone: String) -> Self {
        Self::Undone { failed: Box::new(self), undone }
    }

    /// What the error says about another try; the command has an exit code for each kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_)
            | Self::NoInterface { .. }
            | Self::NoNamespace { .. }
            | Self::NotPrepared { .. } => ErrorKind::Usage,
            Self::NotAllowed { .. } | Self::NotPossible { .. } => ErrorKind::NotPossible,
            Self::Io { .. }
            | Self::Gone { .. }
            | Self::Held { .. }
            | Self::NoLongerPrepared { .. }
            | Self::OtherRule { .. }
            | Self::RulesFull { .. }
            | Self::DeviceExists { .. }
            | Self::Bound { .. }
            | Self::NotSet { .. }
            | Self::NotPutBack { .. }
            | Self::Record { .. } => ErrorKind::Failed,
            Self::Undone { failed, .. } => failed.kind(),
        }
    }
}

/// As [`Refusal`] is shown.
fn in_words(message: Option<&str>, source: &io::Error) -> String {
    match message {
        Some(message) => format!("{message} ({source})"),
        None => source.to_string(),
    }
}

/// For `map_err` about files: what was being done, and the answer.
pub(crate) fn file<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
    let action = what.into();
    move |error| match error.into() {
        source if source.kind() == io::ErrorKind::PermissionDenied => {
            let reason = format!("{action}: {source}: run as root");
            Error::NotAllowed { reason, source }
        }
        source => Error::Io { action, message: None, source },
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_tells_what_the_kernel_said_and_keeps_its_number() {
        let refused = |number| Refusal {
            error: io::Error::from_raw_os_error(number),
            message: Some("the driver's words".to_owned()),
        };
        let error = Error::doing("setting it")(refused(libc::EBUSY));
        assert!(error.to_string().starts_with("setting it: the driver's words ("), "{error}");
        let source = error.source().and_then(|it| it.downcast_ref::<io::Error>());
        assert_eq!(source.and_then(io::Error::raw_os_error), Some(libc::EBUSY));
        let error = error.after_undoing("put back: the rest".to_owned());
        assert!(error.to_string().ends_with("; put back: the rest"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Failed);
        let error = Error::doing("setting it")(refused(libc::EPERM));
        assert_eq!(error.kind(), ErrorKind::NotPossible);
        assert_eq!(error.to_string(), "setting it takes CAP_NET_ADMIN: run as root");
    }
}
