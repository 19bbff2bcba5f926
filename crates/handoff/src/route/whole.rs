//! A route to a TLS connection that ends before its source does, so that the peer has no whole stream.
//!
//! Contracts:
//! - the peer of such a connection is not told of a proper end afterwards, whether the route failed or was dropped.

use super::RouteSink;
use crate::socket::Socket;

/// Notes, when it is dropped, that a sink did not get all.
pub(super) struct Whole(Option<Socket>);

impl Whole {
    /// Watches over a sink that ciphers.
    pub(super) fn to(sink: &RouteSink) -> Self {
        match sink {
            RouteSink::Socket(socket) if socket.shared.is_ciphered() => Self(Some(socket.clone())),
            _ => Self(None),
        }
    }

    /// The sink got all, or nothing.
    pub(super) fn or_nothing(mut self) {
        self.0 = None;
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.shared.is_short.set(true);
        }
    }
}
