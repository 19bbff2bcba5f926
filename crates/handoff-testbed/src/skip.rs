//! How a test says that it cannot run here.

/// The beginning of the line that reports a skip: this, the test's name, a colon, the reason.
pub const MARK: &str = "HANDOFF-SKIP ";

/// Ends a test as skipped, with the reason: a format string and its arguments.
///
/// Only for what this machine lacks; anything else is a failure. The test returns, and
/// the runner of tests counts it as skipped, or as failed if no skip was declared for it. The protocol is
/// one line on the captured standard output, `HANDOFF-SKIP <test name>: <reason>`, so a crate that does
/// not depend on this one can print it itself.
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

/// Unwraps a topology, or skips the current test if this machine cannot have it.
///
/// # Panics
///
/// On any error but permission or availability.
#[macro_export]
macro_rules! topology_or_skip {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(error) if error.is_unavailable() => $crate::skip!("{error}"),
            Err(error) => panic!("{error}"),
        }
    };
}
