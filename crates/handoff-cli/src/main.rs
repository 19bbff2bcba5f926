//! The `handoff` command.
fn main() {}
