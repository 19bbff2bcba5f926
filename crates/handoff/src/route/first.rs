//! The first pieces of a stream, copied as long as they are few and small.
//!
//! Minimum kernel and capability: none. Return signal: none; all is copied.
//!
//! A piece of some hundred bytes costs less to copy than to lend or to splice, and a short connection needs neither
//! a pipe nor a socket that does not block.
//!
//! Contracts:
//! - once [`FEW`] bytes are through, or a piece of [`SMALL`], engines serve that copy less;
//! - bytes that were taken go out first;
//! - between two pieces the other futures of the thread get their turn.

use std::cell::Cell;
use std::mem::MaybeUninit;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{let_others_run, wait};
use crate::error::{Error, Result};
use crate::outcome::Tally;
use crate::socket::Socket;

/// Who sends more at once is likely to send much.
const SMALL: usize = 4 << 10;
/// Who has sent more sends much.
const FEW: u64 = 16 << 10;

/// What one call took from a socket, and what of it another did not take at once.
struct Piece {
    len: usize,
    rest: Vec<u8>,
}

/// Carries the first pieces, and counts what the sink took. Returns whether that was the whole stream.
pub(super) async fn copy(
    from: &Socket,
    to: &Socket,
    moved: &Cell<u64>,
    taken: &mut Tally,
    given: &mut Tally,
) -> Result<bool> {
    let receiving = |error: Errno| Error::io("receiving", error.into());
    let sending = |error: Errno| Error::io("sending", error.into());
    let mut copied = 0;
    let mut count = |bytes: usize| {
        moved.update(|moved| moved + bytes as u64);
        taken.copied += bytes as u64;
        given.copied += bytes as u64;
    };
    loop {
        let Piece { len, mut rest } = match pass_on(from, to) {
            Err(Failed::Receiving(Errno::AGAIN)) => {
                wait(from.readable()).await.map_err(receiving)?;
                continue;
            }
            Err(Failed::Receiving(Errno::INTR)) => continue,
            Err(Failed::Receiving(error)) => return Err(receiving(error)),
            Err(Failed::Sending(error)) => return Err(sending(error)),
            Ok(piece) => piece,
        };
        if len == 0 {
            return Ok(true);
        }
        count(len - rest.len());
        while !rest.is_empty() {
            match send(to, &rest, SEND) {
                Err(Errno::AGAIN) => wait(to.writable()).await.map_err(sending)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(sending(error)),
                Ok(sent) => {
                    rest.drain(..sent);
                    count(sent);
                }
            }
        }
        copied += len as u64;
        if len == SMALL || copied >= FEW {
            return Ok(false);
        }
        let_others_run(&to.driver).await;
    }
}

const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

enum Failed {
    Receiving(Errno),
    Sending(Errno),
}

/// Its memory is on the stack, and so no part of a future.
fn pass_on(from: &Socket, to: &Socket) -> Result<Piece, Failed> {
    let mut space = [MaybeUninit::uninit(); SMALL];
    let received = recv(from, &mut space, RecvFlags::DONTWAIT).map_err(Failed::Receiving)?;
    let (piece, _) = received.0;
    let sent = match piece.is_empty() {
        true => 0,
        false => match send(to, &*piece, SEND) {
            Err(Errno::AGAIN | Errno::INTR) => 0,
            sent => sent.map_err(Failed::Sending)?,
        },
    };
    Ok(Piece { len: piece.len(), rest: piece[sent..].to_vec() })
}
