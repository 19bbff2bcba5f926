//! The messages between host and guest over the virtio port.
//!
//! This file is compiled into both sides. Contracts:
//! - a message is a `u32` length (little endian, of the body), a `u8` kind and the body;
//! - the guest speaks first ([`READY`]), then answers each [`RUN`] with any number of [`STDOUT`] and
//!   [`STDERR`] and exactly one [`EXIT`] or [`REFUSED`]; one command runs at a time;
//! - it answers each [`ASK_TASKS`] with one [`TASKS`], at any time, or never if the kernel does not let
//!   it;
//! - both sides are built together, so there is no version to agree on.

use std::io::{self, Read, Write};

/// Host: start a command; the body is an encoded [`Start`].
pub(crate) const RUN: u8 = 1;
/// Host: bytes for the command's standard input; an empty body is the end of it.
pub(crate) const STDIN: u8 = 2;
/// Host: send the signal in the body (`u32`) to the command's process group.
pub(crate) const SIGNAL: u8 = 3;
/// Host: the terminal's size changed; the body is rows and columns (`u16` each).
pub(crate) const RESIZE: u8 = 4;
/// Host: write everything back and power off.
pub(crate) const OFF: u8 = 5;
/// Host: say where the tasks stand; the body is the number of the command (`u32`).
pub(crate) const ASK_TASKS: u8 = 6;
/// Guest: up; the body is the kernel's release.
pub(crate) const READY: u8 = 16;
/// Guest: bytes that the command wrote to standard output.
pub(crate) const STDOUT: u8 = 17;
/// Guest: bytes that the command wrote to standard error.
pub(crate) const STDERR: u8 = 18;
/// Guest: the command has ended; the body is an encoded [`End`].
pub(crate) const EXIT: u8 = 19;
/// Guest: the command could not be started; the body is the reason.
pub(crate) const REFUSED: u8 = 20;
/// Guest: where the tasks stand; the body is the question's body, then text.
pub(crate) const TASKS: u8 = 21;

/// The line that the guest puts into the kernel log when command number N has ended.
///
/// The console keeps the order: when the host has seen this line, it has seen every earlier kernel
/// message.
pub(crate) const MARK: &str = "handoff-lab: end of command ";

/// No message is longer, so a garbled length cannot make either side allocate without bound.
pub(crate) const LONGEST: usize = 1 << 20;

/// A command to run in the guest.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// Number of the command, repeated in the kernel log by [`MARK`].
    pub(crate) number: u32,
    /// Rows and columns of a terminal to run it on; without one it gets three pipes.
    pub(crate) terminal: Option<(u16, u16)>,
    /// Whether the host asks for [`End::left`].
    pub(crate) tracks: bool,
    /// Working directory.
    pub(crate) directory: Vec<u8>,
    /// Environment, complete, as `NAME=value`.
    pub(crate) environment: Vec<Vec<u8>>,
    /// The program, looked up on the guest's path, and its arguments.
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl Start {
    /// The body of a [`RUN`] message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = self.number.to_le_bytes().to_vec();
        let (rows, columns) = self.terminal.unwrap_or((0, 0));
        body.push(u8::from(self.terminal.is_some()));
        body.extend(rows.to_le_bytes());
        body.extend(columns.to_le_bytes());
        body.push(u8::from(self.tracks));
        put_bytes(&mut body, &self.directory);
        for list in [&self.environment, &self.arguments] {
            body.extend((list.len() as u32).to_le_bytes());
            list.iter().for_each(|item| put_bytes(&mut body, item));
        }
        body
    }

    /// The reverse of [`Start::encode`]; `None` when the body is cut short.
    pub(crate) fn decode(mut body: &[u8]) -> Option<Self> {
        let number = take_u32(&mut body)?;
        let with_terminal = take(&mut body, 1)?[0] == 1;
        let rows = take_u16(&mut body)?;
        let columns = take_u16(&mut body)?;
        let tracks = take(&mut body, 1)?[0] == 1;
        let directory = take_bytes(&mut body)?;
        let mut lists = [Vec::new(), Vec::new()];
        for list in &mut lists {
            for _ in 0..take_u32(&mut body)? {
                list.push(take_bytes(&mut body)?);
            }
        }
        let [environment, arguments] = lists;
        let terminal = with_terminal.then_some((rows, columns));
        Some(Self { number, terminal, tracks, directory, environment, arguments })
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// The signal that killed it, or 0.
    pub(crate) signal: u32,
    /// Its exit code, where no signal killed it.
    pub(crate) code: u32,
    /// The kernel's taint bits afterwards (`/proc/sys/kernel/tainted`).
    pub(crate) taint: u64,
    /// What it left behind, one thing a line, if the host asked.
    pub(crate) left: String,
}

impl End {
    /// The body of an [`EXIT`] message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = self.signal.to_le_bytes().to_vec();
        body.extend(self.code.to_le_bytes());
        body.extend(self.taint.to_le_bytes());
        put_bytes(&mut body, self.left.as_bytes());
        body
    }

    /// The reverse of [`End::encode`]; `None` when the body is cut short.
    pub(crate) fn decode(mut body: &[u8]) -> Option<Self> {
        let signal = take_u32(&mut body)?;
        let code = take_u32(&mut body)?;
        let taint = u64::from_le_bytes(take(&mut body, 8)?.try_into().ok()?);
        let left = String::from_utf8_lossy(&take_bytes(&mut body)?).into_owned();
        Some(Self { signal, code, taint, left })
    }
}

/// The command's number and the text from the body of a [`TASKS`] message.
pub(crate) fn decode_tasks(mut body: &[u8]) -> Option<(u32, String)> {
    let number = take_u32(&mut body)?;
    Some((number, String::from_utf8_lossy(body).into_owned()))
}

/// Rows and columns from the body of a [`RESIZE`] message.
pub(crate) fn decode_size(mut body: &[u8]) -> Option<(u16, u16)> {
    Some((take_u16(&mut body)?, take_u16(&mut body)?))
}

/// Writes one message with a single call, so that messages of several threads do not mix.
pub(crate) fn send(port: &mut impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(5 + body.len());
    message.extend((body.len() as u32).to_le_bytes());
    message.push(kind);
    message.extend(body);
    port.write_all(&message)
}

/// Reads one message; `None` at the end of the connection.
pub(crate) fn receive(port: &mut impl Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut head = [0; 5];
    match port.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    let mut body = vec![0; length];
    port.read_exact(&mut body)?;
    Ok(Some((kind, body)))
}

fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as u32).to_le_bytes());
    body.extend(bytes);
}

fn take<'a>(body: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, tail) = body.split_at_checked(length)?;
    *body = tail;
    Some(head)
}

fn take_u16(body: &mut &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes(take(body, 2)?.try_into().ok()?))
}

fn take_u32(body: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(body, 4)?.try_into().ok()?))
}

fn take_bytes(body: &mut &[u8]) -> Option<Vec<u8>> {
    let length = take_u32(body)? as usize;
    take(body, length).map(<[u8]>::to_vec)
}
