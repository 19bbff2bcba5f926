//! Ways to send a file by system calls alone: sendfile(2); splice(2) through a pipe; and a read into memory
//! that is then sent.

use std::{
    fs::File,
    io::{self, Write as _},
    net::TcpStream,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
};

use rustix::{
    fs::sendfile,
    pipe::{SpliceFlags, splice},
};

use super::{
    file_send::{Offset, PIECE, Way},
    spliced::pipe,
    streams::Streams,
};

/// Repeats `call` until a piece has gone. `call` gets the bytes that are left.
fn whole(mut call: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut left = PIECE as usize;
    while left > 0 {
        match call(left)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => left -= bytes,
        }
    }
    Ok(())
}

pub(super) struct Sendfile {
    file: File,
    socket: TcpStream,
    offset: Offset,
}

impl Sendfile {
    pub(super) fn new(streams: &Streams, socket: TcpStream) -> Result<Self, String> {
        Ok(Self { file: streams.file()?, socket, offset: Offset::default() })
    }
}

impl Way for Sendfile {
    fn send(&mut self) -> Result<(), String> {
        let mut offset = self.offset.next();
        let sent = whole(|left| Ok(sendfile(&self.socket, &self.file, Some(&mut offset), left)?));
        sent.map_err(|error| format!("sendfile: {error}"))
    }

    fn copied(&self) -> Result<Option<u64>, String> {
        Ok(None)
    }
}

pub(super) struct Spliced {
    file: File,
    pipe: (OwnedFd, OwnedFd),
    socket: TcpStream,
    offset: Offset,
}

impl Spliced {
    pub(super) fn new(streams: &Streams, socket: TcpStream) -> Result<Self, String> {
        // A pipe holds 64 KiB by default, which is one piece.
        let pipe = pipe().map_err(|error| format!("a pipe: {error}"))?;
        Ok(Self { file: streams.file()?, pipe, socket, offset: Offset::default() })
    }
}

impl Way for Spliced {
    fn send(&mut self) -> Result<(), String> {
        let (mut offset, (drain, fill)) = (self.offset.next(), &self.pipe);
        let flags = SpliceFlags::empty();
        let taken = whole(|left| {
            let held = splice(&self.file, Some(&mut offset), fill, None, left, flags)?;
            let mut given = 0;
            while given < held {
                given += splice(drain, None, &self.socket, None, held - given, flags)?;
            }
            Ok(held)
        });
        taken.map_err(|error| format!("splice: {error}"))
    }

    fn copied(&self) -> Result<Option<u64>, String> {
        Ok(None)
    }
}

pub(super) struct Copied {
    file: File,
    socket: TcpStream,
    buffer: Vec<u8>,
    offset: Offset,
    sent: u64,
}

impl Copied {
    pub(super) fn new(streams: &Streams, socket: TcpStream) -> Result<Self, String> {
        let buffer = vec![0; PIECE as usize];
        Ok(Self { file: streams.file()?, socket, buffer, offset: Offset::default(), sent: 0 })
    }
}

impl Way for Copied {
    fn send(&mut self) -> Result<(), String> {
        let read = self.file.read_exact_at(&mut self.buffer, self.offset.next());
        read.map_err(|error| format!("pread: {error}"))?;
        self.socket.write_all(&self.buffer).map_err(|error| format!("send: {error}"))?;
        self.sent += PIECE;
        Ok(())
    }

    fn copied(&self) -> Result<Option<u64>, String> {
        // The bytes are copied out of the page cache, and then into the socket.
        Ok(Some(2 * self.sent))
    }
}
