//! What a call to the kernel waits for.

use std::time::Duration;

/// What a call to the kernel waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Nothing: submit, and take what is there.
    Now,
    /// Nothing: submit, and leave the kernel's deferred work to one of the next calls.
    Soon,
    /// At least one completion.
    One,
    /// At least one completion, or this much time.
    OneOr(Duration),
}
