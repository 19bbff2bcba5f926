//! The log, on standard error.

use crate::output;

/// Starts it: warnings, or more with each `-v`. HANDOFF_LOG narrows it by module.
pub fn start(verbose: u8) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let all = Targets::new().with_default(level);
    // HANDOFF_LOG narrows by module ("handoff::ring=trace") what -v sets only as a whole.
    let filter = match std::env::var("HANDOFF_LOG") {
        Ok(text) if !text.is_empty() => text.parse().unwrap_or_else(|error| {
            output::say(format_args!("note: HANDOFF_LOG is not followed: {error}"));
            all
        }),
        _ => all,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(output::Log::default)
        .with_ansi(output::takes_colour(&std::io::stderr()))
        .without_time();
    tracing_subscriber::registry().with(lines).with(filter).init();
}
