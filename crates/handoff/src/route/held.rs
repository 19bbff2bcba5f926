//! The source of a route is received from by the route alone.
//!
//! Contracts:
//! - while a route takes a stream, nobody else receives from that socket, and the other way round;
//! - a route waits for a dropped receive that the kernel still has. If that took bytes, the route fails: they would be
//!   missing at its sink.

use std::future::poll_fn;

use super::RouteSource;
use crate::error::Result;
use crate::op::Waiting;
use crate::socket::Socket;

/// The right to receive from a socket. Dropping it gives the right back.
pub(super) struct Held(Socket);

impl Held {
    /// Takes the right for a stream; a file has none.
    pub(super) async fn take(source: &RouteSource) -> Result<Option<Self>> {
        let RouteSource::Stream(socket, _) = source else { return Ok(None) };
        let mut waiting = Waiting::default();
        poll_fn(|context| {
            let taken = socket.shared.reception.poll_take(&mut waiting, context);
            if taken.is_pending() {
                socket.driver.core.check_driven()?;
            }
            taken
        })
        .await?;
        Ok(Some(Self(socket.clone())))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.shared.reception.end();
    }
}
