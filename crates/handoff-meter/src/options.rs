//! What a meter counts, and how closely.

use crate::scope::Scope;

/// How to count.
///
/// ```
/// use handoff_meter::{Options, Scope};
///
/// let cheap = Options { scope: Scope::Machine, paths: false, libc: false };
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whose copies to count.
    pub scope: Scope,
    /// Whether to tell call paths apart, which makes a counted call several times as costly. Without,
    /// [`Report::places`](crate::Report::places) has one place for each function.
    pub paths: bool,
    /// Whether to count the C library's copies in user space too
    /// ([`Totals::libc_bytes`](crate::Totals::libc_bytes)), which costs a trap for each.
    pub libc: bool,
}
