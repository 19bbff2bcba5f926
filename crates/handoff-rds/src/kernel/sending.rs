//! Sending, with and without a copy.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use handoff::Tally;
use handoff_sys::rds::MAX_MSG_SIZE;
use socket2::{MsgHdr, SockAddr};

use super::control::Cookie;
use super::socket::Socket;
use crate::completion::{Completion, End};
use crate::error::{Error, Refused, Result};
use crate::payload::Payload;

/// How a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Without a copy, except to addresses of the own namespace, to peers named to [`Socket::copy_to`], and
    /// of empty messages.
    #[default]
    Lend,
    /// The kernel copies the bytes.
    Copy,
}

impl<P: Payload> Socket<P> {
    /// Sends a message. Its payload comes back by a completion, with the cookie; any cookie will do, even one
    /// in use. Does not wait. But Linux 7.2 may hold the call until the peer acknowledges, if it is lost just
    /// after the two hosts first met (docs/rds.md, "A send that does not return").
    ///
    /// # Errors
    ///
    /// With the payload: too long, the destination congested, the send buffer full, too much memory
    /// locked, no way to the peer.
    pub fn send(
        &self,
        to: SocketAddr,
        payload: P,
        cookie: u32,
        mode: Mode,
    ) -> Result<(), Refused<P>> {
        if let Err(error) = self.check_here() {
            return Err(Refused { payload, error });
        }
        let bytes: *const [u8] = payload.bytes();
        let lend = mode == Mode::Lend && !bytes.is_empty() && !self.locality.copies(to.ip());
        let len = bytes.len() as u64;
        let (end, tally) = if lend {
            (End::Acknowledged, Tally { unknown: len, ..Tally::default() })
        } else {
            (End::Taken, Tally { copied: len, ..Tally::default() })
        };
        let slot = self.state().slots.begin(Completion { payload, cookie, to, end, tally });
        // SAFETY: the payload keeps its bytes in place and unchanged (`Payload`), and stays in its slot at
        // least until `sent` below.
        let bytes = unsafe { &*bytes };
        let sent = if lend {
            self.send_bytes(to, bytes, Cookie::new(slot).as_bytes(), libc::MSG_ZEROCOPY)
        } else {
            self.send_bytes(to, bytes, &[], 0)
        };
        let mut state = self.state();
        // A copied message is as good as reported.
        if sent.is_ok() && !lend {
            state.slots.complete(slot);
        }
        let back = state.slots.sent(slot, sent.is_ok());
        let counted = &mut state.statistics;
        match sent {
            Ok(()) => {
                if lend {
                    counted.lent += 1;
                    counted.lent_bytes += len;
                } else {
                    counted.copied += 1;
                    counted.copied_bytes += len;
                }
                back.into_iter().for_each(|completion| state.completions.push(completion));
                Ok(())
            }
            Err(error) => {
                let error = self.refusal(to, bytes.len(), lend, error);
                counted.refused_congested += u64::from(matches!(error, Error::Congested(_)));
                counted.refused_full += u64::from(matches!(error, Error::Full { .. }));
                let payload = back.expect("a refused message is back").payload;
                Err(Refused { payload, error })
            }
        }
    }

    fn send_bytes(
        &self,
        to: SocketAddr,
        bytes: &[u8],
        control: &[u8],
        flags: i32,
    ) -> io::Result<()> {
        let to = SockAddr::from(to);
        let bytes = [IoSlice::new(bytes)];
        let mut message = MsgHdr::new().with_addr(&to).with_buffers(&bytes);
        if !control.is_empty() {
            message = message.with_control(control);
        }
        // A message goes whole or not at all.
        self.socket.sendmsg(&message, flags | libc::MSG_DONTWAIT).map(|_| ())
    }

    fn refusal(&self, to: SocketAddr, len: usize, lent: bool, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => {
                let buffer = self.send_buffer().unwrap_or(MAX_MSG_SIZE);
                let (limit, cause) = if buffer < MAX_MSG_SIZE {
                    (buffer, "the send buffer's size (Socket::set_send_buffer, net.core.wmem_max)")
                } else {
                    (MAX_MSG_SIZE, "the kernel's own for any message")
                };
                Error::MessageTooLong { len, limit, cause }
            }
            Some(libc::ENOBUFS) => Error::Congested(to),
            Some(libc::EAGAIN) => Error::Full {
                to,
                cause: "the send buffer is full until peers acknowledge (Socket::set_send_buffer)",
            },
            Some(libc::ENOMEM) if lent => match handoff_probe::lock_limit() {
                Some(limit) => {
                    Error::Memlock { need: len, locked: handoff_probe::locked_already(), limit }
                }
                None => Error::Io { action: "send an RDS message", source: error },
            },
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EADDRNOTAVAIL) => {
                Error::Unreachable { to, source: error }
            }
            _ => Error::Io { action: "send an RDS message", source: error },
        }
    }
}
