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

use super::pause::let_others_run;
use crate::error::{Error, Result};
use crate::outcome::Tally;
use crate::socket::Socket;

/// Who sends more at once is likely to send much.
const SMALL: usize = 4 << 10;
/// Who has sent more sends much.
const FEW: u64 = 16 << 10;

/// Carries the first pieces, and counts what the sink took. Returns whether that was the whole stream.
pub(super) async fn copy(
    from: &Socket,
    to: &Socket,
    moved: &Cell<u64>,
    taken: &mut Tally,
    given: &mut Tally,
) -> Result<bool> {
    let mut copied = 0;
    let mut count = |bytes: usize| {
        moved.update(|moved| moved + bytes as u64);
        taken.copied += bytes as u64;
        given.copied += bytes as u64;
    };
    loop {
        let Some(Piece { len, mut rest }) = pass_on(from, to)? else {
            from.readable()?.await?;
            continue;
        };
        if len == 0 {
            return Ok(true);
        }
        count(len - rest.len());
        while !rest.is_empty() {
            to.writable()?.await?;
            let sent = send_now(to, &rest)?;
            rest.drain(..sent);
            count(sent);
        }
        copied += len as u64;
        if len == SMALL || copied >= FEW {
            return Ok(false);
        }
        let_others_run(&to.driver).await;
    }
}

/// What one call took from a socket, and what of it another did not take at once.
struct Piece {
    len: usize,
    rest: Vec<u8>,
}

/// Passes on what is there; `None` if nothing is. Its memory is on the stack, and so no part of a future.
fn pass_on(from: &Socket, to: &Socket) -> Result<Option<Piece>> {
    let mut space = [MaybeUninit::uninit(); SMALL];
    let piece = match recv(from, &mut space, RecvFlags::DONTWAIT) {
        Ok(((piece, _), _)) => piece,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(Error::io("receiving", error.into())),
    };
    let sent = if piece.is_empty() { 0 } else { send_now(to, piece)? };
    Ok(Some(Piece { len: piece.len(), rest: piece[sent..].to_vec() }))
}

/// Sends what there is room for.
fn send_now(to: &Socket, bytes: &[u8]) -> Result<usize> {
    match send(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => sent.map_err(|error| Error::io("sending", error.into())),
    }
}
