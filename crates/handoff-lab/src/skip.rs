//! How a test says that it cannot run where it is.

/// How a line begins that says that a test did not run: this, the test's name, a colon, the reason.
pub const MARK: &str = "HANDOFF-SKIP ";

/// Ends a test as skipped, with the reason: a format string and its arguments.
///
/// For what this machine lacks only; anything else is a failure. The test returns, and
/// [`crate::testing`] counts it as skipped, and as failed where no skip was declared for it. The
/// protocol is one line on the captured standard output, `HANDOFF-SKIP <test name>: <reason>`, so a
/// crate that does not depend on this one can print it itself.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        fn here() {}
        let name = ::std::any::type_name_of_val(&here).trim_end_matches("::here");
        let reason = ::std::format!($($reason)+).replace('\n', " ");
        ::std::println!("{}{name}: {reason}", $crate::skip::MARK);
        return;
    }};
}
