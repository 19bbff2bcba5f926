//! How a test says that it cannot run where it is.

/// How the line begins that says so; the test's name, a colon and the reason follow.
pub const MARK: &str = "HANDOFF-SKIP ";

/// Ends a test as skipped, with the reason: a format string and its arguments.
///
/// The test returns; [`crate::testing`] and `cargo xtask test` count it as skipped. The protocol is
/// one line on the captured standard output, `HANDOFF-SKIP name: reason`, so a crate that does not
/// depend on this one can print it itself.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        fn here() {}
        // The name of a function in the test begins with the test's own.
        let name = ::std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").unwrap_or(name);
        println!("{}{name}: {}", $crate::skip::MARK, format_args!($($reason)+));
        return;
    }};
}
