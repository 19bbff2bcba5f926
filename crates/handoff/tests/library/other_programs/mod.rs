//! Other people's programs as peers: they get what was lent, and what they send lands in its place, byte by byte
//! and datagram by datagram.

mod received;
mod sent;

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A program with pipes to it and from it; `None` if it is not installed.
fn start(program: &str, arguments: &[&str]) -> Option<Child> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => panic!("{program}: {error}"),
    }
}
