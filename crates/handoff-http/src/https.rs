//! TLS, before the first request of a connection.
//!
//! Contracts:
//! - a client has as long for its handshake as for the head of a request ([`Limits::head_time`](crate::Limits::head_time)),
//!   and holds a place meanwhile;
//! - nothing is served to a client that asks for another protocol than HTTP/1.1.

use handoff::{Client, Error, Socket};

use crate::common::Common;

/// The protocol that is served, as ALPN names it.
const HTTP_1_1: &[u8] = b"http/1.1";

/// The connection as it is to be served: with TLS, if the server has that; `None` if the client cannot.
pub(crate) async fn begin(common: &Common, socket: Socket, peer: Client) -> Option<Socket> {
    let Some(acceptor) = common.acceptor.get() else { return Some(socket) };
    let accepting = Box::pin(acceptor.accept(socket));
    let accepted =
        common.driver.timeout(common.limits.head_time, accepting).await.and_then(|it| it);
    let refused = match accepted {
        Ok((socket, session)) => match session.protocol.as_deref() {
            None | Some(HTTP_1_1) => return Some(socket),
            Some(_) => Error::Tls { reason: "the client speaks another protocol".to_owned() },
        },
        Err(error) => error,
    };
    tracing::info!(%peer, error = %refused, "a client is not served");
    None
}
