//! What every command gets besides its own arguments.

use crate::stop::Stop;

/// How a command was called.
#[derive(Debug)]
pub struct Context {
    /// `--json` was given: stdout carries one JSON value and nothing else.
    pub json: bool,
    /// Set by SIGINT, SIGTERM and SIGHUP.
    pub stop: Stop,
}
