//! TLS, before the first request of a connection.
//!
//! Contracts:
//! - a client has as long for its handshake as for the head of a request ([`Limits::head_time`](crate::Limits::head_time),
//!   or [`Limits::idle`](crate::Limits::idle) if that is less),
//!   and holds a place meanwhile: if all are taken, it leaves its own for the next, as one that waits for a request does;
//! - the server's end is that of handshakes under way;
//! - a client that asks in the clear is told so in the clear, and served nothing;
//! - nothing is served to a client that asks for another protocol than HTTP/1.1.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use handoff::tls::{TlsAcceptor, TlsSession};
use handoff::{Client, Engine, Error, Result, Socket};
use http::StatusCode;
use rustix::net::{RecvFlags, recv};

use crate::common::Common;
use crate::wire::Refusal;

/// The protocol that is served, as ALPN names it.
const HTTP_1_1: &[u8] = b"http/1.1";

/// Reasons that are remembered.
const REASONS: usize = 8;

/// A connection as it is to be served: all requests, or none of them, for a reason.
type Begun = (Socket, Option<Refusal>);

/// The connection, with TLS if the server has that; `None` if it ends here.
pub(crate) async fn begin(
    common: &Common,
    socket: Socket,
    peer: Client,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Option<Begun> {
    let Some(acceptor) = common.acceptor.get() else { return Some((socket, None)) };
    let registration = common.registry.register(peer);
    registration.mark_idle(Instant::now());
    let beginning = Box::pin(accept(common, acceptor, socket));
    let time = common.limits.head_time.min(common.limits.idle);
    let mut beginning = pin!(common.driver.timeout(time, beginning));
    let begun = poll_fn(|context| match beginning.as_mut().poll(context) {
        Poll::Ready(begun) => Poll::Ready(Some(begun.and_then(|it| it))),
        Poll::Pending if stop.as_mut().poll(context).is_ready() => Poll::Ready(None),
        Poll::Pending => registration.poll_ended(context).map(|()| None),
    });
    match begun.await? {
        Ok(begun) => Some(begun),
        Err(error) => {
            common.counters.write(|served| served.tls_refused += 1);
            tracing::info!(%peer, %error, "TLS did not begin");
            None
        }
    }
}

async fn accept(common: &Common, acceptor: &TlsAcceptor, socket: Socket) -> Result<Begun> {
    if asks_in_the_clear(&socket).await? {
        let refusal =
            Refusal::new(StatusCode::BAD_REQUEST, "this port speaks TLS: ask for https://");
        return Ok((socket, Some(refusal)));
    }
    let (socket, session) = acceptor.accept(socket).await?;
    if !matches!(session.protocol.as_deref(), None | Some(HTTP_1_1)) {
        return Err(Error::Tls { reason: "the client speaks another protocol".to_owned() });
    }
    count(common, &session);
    Ok((socket, None))
}

/// Whether the first byte begins the name of a method. A record of TLS begins with its type, which is no letter.
async fn asks_in_the_clear(socket: &Socket) -> Result<bool> {
    let mut first = [0];
    loop {
        match recv(socket, &mut first[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, count)) => return Ok(count > 0 && first[0].is_ascii_alphabetic()),
            Err(rustix::io::Errno::AGAIN) => socket.readable()?.await?,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(Error::Io {
                    action: "looking at what a client says",
                    source: error.into(),
                });
            }
        }
    }
}

/// Counts a connection by who ciphers it, and remembers why.
fn count(common: &Common, session: &TlsSession) {
    common.counters.write(|served| match session.engine {
        Engine::KernelTls => served.tls_by_kernel += 1,
        _ => served.tls_by_process += 1,
    });
    let mut ciphers = common.ciphers.borrow_mut();
    let is_new = |(engine, reason): &(Engine, String)| {
        *engine != session.engine || *reason != session.reason
    };
    if ciphers.len() < REASONS && ciphers.iter().all(is_new) {
        ciphers.push((session.engine, session.reason.clone()));
    }
}
