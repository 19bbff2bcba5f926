//! Receiving messages, and reading completions without them.

use std::io;
use std::net::SocketAddr;
use std::sync::PoisonError;

use socket2::{MaybeUninitSlice, MsgHdrMut, SockAddr, SockAddrStorage};

use super::control::ControlBuffer;
use super::socket::Socket;
use crate::error::{Error, Result};
use crate::payload::Payload;
use crate::received::Received;

impl<P: Payload> Socket<P> {
    /// The next message; `None` if there is none. Does not wait.
    ///
    /// # Errors
    ///
    /// The kernel's, and [`Error::NotPossible`] without memory for the message, which stays.
    pub fn receive(&self) -> Result<Option<Received>> {
        // One thread at a time, so that the message whose length was seen is still there.
        let _alone = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((len, _)) = self.read(&mut [], libc::MSG_PEEK | libc::MSG_TRUNC)? else {
            return Ok(None);
        };
        let mut payload = Vec::new();
        payload.try_reserve_exact(len).map_err(|_| {
            Error::NotPossible(format!("no memory for a message of {len} bytes, which waits"))
        })?;
        let room = &mut payload.spare_capacity_mut()[..len];
        let Some((len, from)) = self.read(&mut [MaybeUninitSlice::new(room)], 0)? else {
            return Ok(None);
        };
        // SAFETY: the kernel has written `len` bytes, no more than there was room for, from the
        // beginning.
        unsafe { payload.set_len(len) };
        let from = from.ok_or(Error::Invalid("a message came from no address"))?;
        let counted = &mut self.state().statistics;
        counted.received += 1;
        counted.received_bytes += len as u64;
        Ok(Some(Received { from, payload }))
    }

    /// Reads a message or looks at it. `None` if there is none; takes completions in any case.
    fn read(
        &self,
        room: &mut [MaybeUninitSlice<'_>],
        flags: i32,
    ) -> Result<Option<(usize, Option<SocketAddr>)>> {
        loop {
            match self.call(room, flags)? {
                None => return Ok(None),
                // Only completions came: a message has a sender.
                Some((0, None)) => {}
                Some(message) => return Ok(Some(message)),
            }
        }
    }

    /// Reads completions without touching messages; `false` if there are none.
    ///
    /// The kernel also gives them with a message that is only looked at; there is no other way to leave the
    /// messages in place.
    pub(super) fn read_completions(&self) -> Result<bool> {
        let before = self.state().statistics.returned;
        self.state().statistics.reaps += 1;
        let came = self.call(&mut [], libc::MSG_PEEK)?.is_some();
        Ok(came && self.state().statistics.returned != before)
    }

    fn call(
        &self,
        room: &mut [MaybeUninitSlice<'_>],
        flags: i32,
    ) -> Result<Option<(usize, Option<SocketAddr>)>> {
        self.check_here()?;
        let mut messages = ControlBuffer::new();
        // A family of 0 if the kernel leaves it unchanged.
        let mut from = empty();
        let mut message =
            MsgHdrMut::new().with_addr(&mut from).with_buffers(room).with_control(messages.room());
        let len = match self.socket.recvmsg(&mut message, flags | libc::MSG_DONTWAIT) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(Error::io("receive from an RDS socket")(error)),
        };
        let control = message.control_len();
        let mut state = self.state();
        for slot in messages.cookies(control) {
            state.statistics.returned += 1;
            let back = state.slots.complete(slot);
            back.into_iter().for_each(|completion| state.completions.push(completion));
        }
        Ok(Some((len, from.as_socket())))
    }
}

fn empty() -> SockAddr {
    let storage = SockAddrStorage::zeroed();
    let len = storage.size_of();
    // SAFETY: all zeros is a storage of no family, of that length.
    unsafe { SockAddr::new(storage, len) }
}
