//! Vectors that grow by received or read bytes.
//!
//! Minimum kernel: any. They cannot be registered: their memory is of the heap.
//!
//! Contracts:
//! - the room behind a vector's bytes is lent uncleared, and nobody reads it before it is filled;
//! - a vector comes back longer by the bytes that came, also from an operation that failed or was
//!   cancelled.

use std::fmt;

/// A vector, and the most bytes that an operation appends to it.
///
/// The room is not cleared before, and the vector is not copied after, so long payloads land in memory of their own.
/// Each loan costs a small allocation.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// let message = b"begins here, ".to_vec();
/// let received = socket.receive_exact(handoff::Append::to(message, 1 << 20))?.await?;
/// received.result?;
/// let message = received.buffer.into_vec();
/// assert_eq!(message.len(), 13 + (1 << 20));
/// # Ok(()) }
/// ```
pub struct Append {
    vector: Vec<u8>,
    room: usize,
}

impl Append {
    /// Makes room for this many bytes behind the vector's, if it has less.
    ///
    /// # Panics
    ///
    /// When a vector cannot have that many.
    pub fn to(mut vector: Vec<u8>, bytes: usize) -> Self {
        vector.reserve(bytes);
        Self { vector, room: bytes }
    }

    /// Bytes that can still be appended.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The vector with what was appended.
    pub fn into_vec(self) -> Vec<u8> {
        self.vector
    }

    pub(crate) fn into_parts(self) -> (Vec<u8>, usize) {
        (self.vector, self.room)
    }

    /// # Safety
    ///
    /// This many bytes behind those of the vector are initialised.
    pub(crate) unsafe fn filled(mut vector: Vec<u8>, room: usize, bytes: usize) -> Self {
        debug_assert!(bytes <= room && room <= vector.capacity() - vector.len());
        // SAFETY: they are within the capacity, since the room is; the caller says that they are initialised.
        unsafe { vector.set_len(vector.len() + bytes) };
        Self { vector, room: room - bytes }
    }
}

impl fmt::Debug for Append {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector, room } = self;
        f.debug_struct("Append").field("len", &vector.len()).field("room", room).finish()
    }
}
