//! How a test says that it cannot run where it is.

/// How a line begins that says that the test that printed it did not run.
pub const MARK: &str = "handoff-skip: ";

/// Ends a test as skipped, with the reason: a format string and its arguments.
///
/// The test returns; [`crate::testing`] counts it as skipped, and as failed where no skip was
/// declared for it. The protocol is one line on the captured standard output, `handoff-skip: ` and
/// the reason, so a crate that does not depend on this one can print it itself.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        println!("{}{}", $crate::skip::MARK, format_args!($($reason)+));
        return;
    }};
}
