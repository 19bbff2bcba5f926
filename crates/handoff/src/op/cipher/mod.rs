//! What ciphers the bytes of a socket: the kernel, or rustls in user space.
//!
//! Contracts:
//! - a connection that ends without close-notify is cut off, which is an error and no end; nor do we say close-notify when
//!   a send has not gone whole;
//! - keys are changed, or the connection ends, before they have ciphered more records than is safe;
//! - keys are in no message and no log. rustls wipes its own, and so does what hands them to the kernel.
//!
//! Minimum kernel: any in user space; see [`ktls`] for what the kernel's needs.

mod kernel;
mod stop;
mod user;

use std::os::fd::OwnedFd;

pub(crate) use kernel::{KernelCipher, KernelKeys, set_keys};
pub(crate) use stop::{Stop, discard};
pub(crate) use user::{Records, UserCipher, UserKeys, either};

/// What ciphers.
pub(crate) enum Cipher {
    Kernel(Box<KernelCipher>),
    User(Box<UserCipher>),
}

impl Cipher {
    /// Whether the peer has ended its direction properly.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Kernel(cipher) => cipher.closed,
            Self::User(cipher) => cipher.closed && cipher.plain_left().is_empty(),
        }
    }

    /// Whether there are bytes to take, or the peer's end.
    pub(crate) fn has_something(&self) -> bool {
        match self {
            Self::Kernel(cipher) => cipher.closed,
            Self::User(cipher) => cipher.closed || !cipher.plain_left().is_empty(),
        }
    }

    /// Why the connection cannot go on, if it cannot.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Kernel(cipher) => cipher.failure.clone(),
            Self::User(cipher) => cipher.failure.clone(),
        }
    }

    /// Whether payload of a send that has not gone whole is in records.
    pub(crate) fn has_part(&self) -> bool {
        matches!(self, Self::User(cipher) if cipher.payload > 0)
    }

    /// Tells the peer that nothing follows.
    pub(crate) fn close(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        match self {
            Self::Kernel(cipher) => cipher.close(socket),
            Self::User(cipher) => cipher.close(socket),
        }
    }

    /// Receives by a call into memory of this length: the number of bytes, 0 at the peer's proper end, or a negative errno.
    /// With `keeps` the same bytes come again.
    ///
    /// # Safety
    ///
    /// The memory is the caller's alone through the call, and has a byte.
    pub(crate) unsafe fn receive(
        &mut self,
        socket: &OwnedFd,
        into: (*mut u8, usize),
        keeps: bool,
    ) -> i32 {
        match self {
            Self::Kernel(cipher) => {
                let flags = if keeps { libc::MSG_PEEK } else { 0 };
                // SAFETY: as the caller says.
                unsafe { cipher.receive(socket, into, flags) }
            }
            // SAFETY: as the caller says.
            Self::User(cipher) => unsafe { cipher.receive(socket, into, keeps) },
        }
    }
}
