//! What a receiver says on one connection, as the sender hears it: by a pool, or into a buffer where that must be
//! deciphered.
//!
//! Contract: nothing that came is lost if nobody waits for a while.

use handoff::{Buffer, Pool, Receiver, Socket, Transfer};
use handoff_command::Failure;
use handoff_command::failure::Failed;

/// Bytes of a piece of what the receiver says.
pub(crate) const CHUNK: usize = 4096;

/// A connection to hear on.
pub(crate) enum Ear<'a> {
    Plain(Receiver),
    /// With what is under way.
    Ciphered(&'a Socket, Option<Transfer<Buffer>>),
}

impl<'a> Ear<'a> {
    /// # Errors
    ///
    /// The driver's refusals.
    pub(crate) fn new(socket: &'a Socket, ciphered: bool, pool: &Pool) -> Result<Self, Failure> {
        match ciphered {
            true => Ok(Self::Ciphered(socket, None)),
            false => socket.receive(pool).failed("receiving").map(Self::Plain),
        }
    }

    /// Reads what comes next; `None` at the end.
    pub(crate) async fn next<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Option<handoff::Result<T>> {
        match self {
            Self::Plain(receiver) => Some(receiver.next_span().await?.map(|span| read(&span))),
            Self::Ciphered(socket, receiving) => {
                if receiving.is_none() {
                    match socket.receive_into(Buffer::from(vec![0; CHUNK])) {
                        Ok(begun) => *receiving = Some(begun),
                        Err(refused) => return Some(Err(refused.error)),
                    }
                }
                let over = receiving.as_mut().expect("was begun").await;
                *receiving = None;
                match over.and_then(|over| Ok((over.result?, over.buffer))) {
                    Ok((0, _)) => None,
                    Ok((len, buffer)) => Some(Ok(read(&buffer[..len]))),
                    Err(error) => Some(Err(error)),
                }
            }
        }
    }
}
