//! A client of the protocol's simplest form, which also does what it should not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use handoff_nbd::client::{Limits, Step, Wish};
use handoff_nbd::wire::Session;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const ZEROES: u16 = 6;
pub(crate) const FUA: u16 = 1;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;

/// A connection with simple replies.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    next: u64,
}

/// Negotiates by our own machine; the error is what the server said.
pub(crate) fn negotiate(
    stream: &mut TcpStream,
    export: &str,
    session: Option<Session>,
) -> Result<Option<u128>, String> {
    let wish = Wish {
        session,
        structured: false,
        extended: false,
        allocation: false,
        ..Wish::export(export)
    };
    let mut negotiation = handoff_nbd::client::Negotiation::new(wish, Limits::default());
    let mut byte = [0];
    let mut here = 0;
    loop {
        let (taken, step) = negotiation.next(&byte[..here]).map_err(|error| error.to_string())?;
        assert_eq!(taken, here);
        here = 0;
        match step {
            Step::More => {
                stream.read_exact(&mut byte).map_err(|error| error.to_string())?;
                here = 1;
            }
            Step::Send(bytes) => stream.write_all(&bytes).expect("sends"),
            Step::Ready(agreed) => return Ok(agreed.instance),
            step => return Err(format!("{step:?}")),
        }
    }
}

impl Raw {
    pub(crate) fn new(mut stream: TcpStream, export: &str) -> Self {
        stream.set_nodelay(true).expect("sets");
        negotiate(&mut stream, export, None).expect("is agreed");
        Self { stream, next: 1 }
    }

    pub(crate) fn begin(&mut self, flags: u16, command: u16, offset: u64, length: u32) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
        header.extend(flags.to_be_bytes());
        header.extend(command.to_be_bytes());
        header.extend(cookie.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend(length.to_be_bytes());
        self.stream.write_all(&header).expect("sends");
        cookie
    }

    /// The next reply without payload: its cookie and error.
    pub(crate) fn reply(&mut self) -> (u64, u32) {
        self.try_reply().expect("receives")
    }

    pub(crate) fn try_reply(&mut self) -> std::io::Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("4"));
        Ok((u64::from_be_bytes(reply[8..].try_into().expect("8")), error))
    }

    /// A request without payload; its error, or 0.
    pub(crate) fn ask(&mut self, flags: u16, command: u16, offset: u64, length: u32) -> u32 {
        let cookie = self.begin(flags, command, offset, length);
        let (answered, error) = self.reply();
        assert_eq!(answered, cookie);
        error
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, bytes: &[u8]) -> u32 {
        let cookie = self.begin(flags, WRITE, offset, bytes.len() as u32);
        self.stream.write_all(bytes).expect("sends");
        let (answered, error) = self.reply();
        assert_eq!(answered, cookie);
        error
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        assert_eq!(self.ask(0, READ, offset, length), 0);
        let mut bytes = vec![0; length as usize];
        self.stream.read_exact(&mut bytes).expect("receives");
        bytes
    }
}
