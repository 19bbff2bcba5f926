//! The handshake over a socket, record by record.

use std::cell::RefCell;

use rustls::CommonState;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

use super::exporter::Tap;
use super::kernel;
use super::session::{Ciphering, TlsSession, failed};
use crate::error::{Error, Result};
use crate::mechanism::Engine;
use crate::memory::Buffer;
use crate::op::cipher::{Cipher, Records, UserCipher, UserKeys, discard, either};
use crate::socket::Socket;

/// Bytes of a record's head.
const HEAD: usize = 5;
/// The most bytes behind it.
const MOST: usize = (1 << 14) + 2048;

/// Two bytes, the type, and the cipher's tag.
const SEALED_ALERT: usize = 2 + 1 + 16;

/// Makes a TLS connection of a socket.
pub(super) async fn run(
    socket: Socket,
    mut keys: UserKeys,
    ciphering: Ciphering,
    exporting: Option<(&Tap, &[u8])>,
) -> Result<(Socket, TlsSession)> {
    check(&socket)?;
    shake_hands(&socket, &mut keys).await?;
    let session = session(&keys, exporting)?;
    let (cipher, session) = match ciphering {
        Ciphering::User => {
            (in_user_space(keys), TlsSession { reason: "asked for".into(), ..session })
        }
        asked => match (kernel_takes(&socket, &session), asked) {
            (Ok(can), _) => {
                let reason = "the kernel has this cipher".to_owned();
                let cipher = kernel::give(&socket, keys, &can)?;
                (cipher, TlsSession { engine: Engine::KernelTls, reason, ..session })
            }
            (Err(reason), Ciphering::Kernel) => return Err(Error::Tls { reason }),
            (Err(reason), _) => (in_user_space(keys), TlsSession { reason, ..session }),
        },
    };
    socket.shared.lender.chooser.borrow_mut().wish(session.engine);
    let set = socket.shared.cipher.set(RefCell::new(cipher));
    debug_assert!(set.is_ok(), "it was no TLS connection");
    Ok((socket, session))
}

fn kernel_takes(socket: &Socket, session: &TlsSession) -> std::result::Result<kernel::Can, String> {
    let can = kernel::takes(session.version, session.suite)?;
    kernel::attach(socket).map(|()| can)
}

fn in_user_space(keys: UserKeys) -> Cipher {
    Cipher::User(Box::new(UserCipher::new(keys)))
}

/// What is under way would be taken for TLS, or take bytes of it.
fn check(socket: &Socket) -> Result<()> {
    let shared = &socket.shared;
    shared.check_plain("this is a TLS connection already")?;
    shared.reception.check_whole()?;
    shared.reception.check_free()?;
    if shared.handles.get() > 1 {
        return Err(Error::Invalid(
            "somebody else has a handle on the socket, and would go on in the clear: drop it before TLS begins",
        ));
    }
    let queue = shared.queue.borrow();
    if !shared.stream {
        return Err(Error::Invalid("TLS goes over a stream"));
    }
    if let Some(error) = queue.refusal() {
        return Err(error);
    }
    if !queue.is_idle() {
        return Err(Error::Invalid("sends are under way: TLS begins behind them (Socket::flush)"));
    }
    Ok(())
}

/// What is to be done next.
enum Step {
    Go,
    Send,
    Receive,
    Done,
}

async fn shake_hands(socket: &Socket, keys: &mut UserKeys) -> Result<()> {
    let (mut incoming, mut outgoing) = (Vec::new(), Records::default());
    // What the peer says are records.
    let mut is_tls = true;
    let not_tls = || Error::Tls { reason: "the peer does not speak TLS".into() };
    loop {
        match step(keys, &mut incoming, &mut outgoing) {
            Ok(Step::Go) => {}
            Ok(Step::Send) => send(socket, &mut outgoing).await?,
            Ok(Step::Receive) if !is_tls => return Err(not_tls()),
            Ok(Step::Receive) => {
                send(socket, &mut outgoing).await?;
                is_tls = receive(socket, &mut incoming).await?;
            }
            Ok(Step::Done) => {
                return match incoming.is_empty() {
                    true => send(socket, &mut outgoing).await,
                    false => Err(Error::Tls { reason: "bytes are left of the handshake".into() }),
                };
            }
            Err(error) => {
                tell(keys, &mut incoming, &mut outgoing);
                let _ = send(socket, &mut outgoing).await;
                discard(&socket.shared.endpoint.fd);
                return Err(if is_tls { error } else { not_tls() });
            }
        }
    }
}

/// Writes what the peer is told about an error: an alert, behind what answers its messages. rustls gives that first, and must
/// not see again what it has refused, so nothing is asked for behind the alert.
fn tell(keys: &mut UserKeys, incoming: &mut Vec<u8>, outgoing: &mut Records) {
    loop {
        let before = outgoing.len();
        let stepped = step(keys, incoming, outgoing);
        let is_alert = match &outgoing[before..] {
            // One that is ciphered, by TLS 1.3, is the only record that is so short.
            [23, ..] => outgoing.len() - before == HEAD + SEALED_ALERT,
            record => record.first() == Some(&21),
        };
        if is_alert || !matches!(stepped, Ok(Step::Go)) {
            return;
        }
    }
}

/// Goes on by what has come. What rustls has not used up must come again.
fn step(keys: &mut UserKeys, incoming: &mut Vec<u8>, outgoing: &mut Records) -> Result<Step> {
    let (used, step) = either!(keys, incoming, |status| {
        let UnbufferedStatus { discard, state, .. } = status;
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(mut encodes)) => outgoing
                .append(0, |room| encodes.encode(room))
                .map(|()| Step::Go)
                .map_err(|stop| stop.error("a handshake")),
            Ok(ConnectionState::TransmitTlsData(transmits)) => {
                // Nothing else happens before they are sent.
                transmits.done();
                Ok(Step::Send)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Step::Receive),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                Err(Error::Tls { reason: "the peer ended during the handshake".into() })
            }
            Ok(_) => Err(Error::Tls { reason: "early data is not taken".into() }),
            Err(error) => Err(failed(error)),
        };
        (discard, step)
    });
    incoming.drain(..used);
    step
}

async fn send(socket: &Socket, outgoing: &mut Records) -> Result<()> {
    if outgoing.is_empty() {
        return Ok(());
    }
    let buffer = Buffer::from(outgoing.take());
    socket.send(buffer).map_err(|refused| refused.error)?.await?.sent.map(drop)
}

/// Receives one record, and no byte more. `false`: of what is none, the head is there, and rustls says what the peer is told.
async fn receive(socket: &Socket, incoming: &mut Vec<u8>) -> Result<bool> {
    let head = exactly(socket, HEAD).await?;
    let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
    incoming.extend_from_slice(&head);
    if !(20..=23).contains(&head[0]) || head[1] != 3 || len > MOST {
        return Ok(false);
    }
    incoming.extend_from_slice(&exactly(socket, len).await?);
    Ok(true)
}

async fn exactly(socket: &Socket, len: usize) -> Result<Buffer> {
    let buffer = Buffer::from(vec![0; len]);
    let received = socket.receive_exact(buffer).map_err(|refused| refused.error)?.await?;
    match received.result {
        Ok(_) => Ok(received.buffer),
        Err(Error::StreamEnded { .. }) => {
            Err(Error::Tls { reason: "the peer ended during the handshake".into() })
        }
        Err(error) => Err(error),
    }
}

fn session(keys: &UserKeys, exporting: Option<(&Tap, &[u8])>) -> Result<TlsSession> {
    let common: &CommonState = match keys {
        UserKeys::Client(keys) => keys,
        UserKeys::Server(keys) => keys,
    };
    let lacks = || Error::Tls { reason: "the handshake agreed on nothing".into() };
    let suite = common.negotiated_cipher_suite().ok_or_else(lacks)?;
    let export = |(tap, label): (&Tap, &[u8])| {
        let reason = "nothing can be exported of TLS 1.2 here: ask for TLS 1.3".to_owned();
        tap.export(suite, label).ok_or(Error::Tls { reason })
    };
    let certificates = common.peer_certificates().unwrap_or_default();
    Ok(TlsSession {
        engine: Engine::UserTls,
        reason: String::new(),
        version: common.protocol_version().ok_or_else(lacks)?,
        suite,
        protocol: common.alpn_protocol().map(<[u8]>::to_vec),
        certificates: certificates.iter().map(|it| it.clone().into_owned()).collect(),
        exported: exporting.map(export).transpose()?,
    })
}
