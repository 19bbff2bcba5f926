//! Files as a sink: writes of lent buffers.
//!
//! Minimum kernel: 5.1 (`WRITE_FIXED` for registered buffers, else `WRITE`, 5.6). Capability: none.
//! Return signal: the completion.

use crate::engine::transfer::Direction;
use crate::error::Result;
use crate::file::{File, Transfer};
use crate::lease::{Lend, Refused};

impl File {
    /// Writes all of the buffer's length in use at `offset`.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when too many operations are under way, or the offset is 2^63 or more.
    pub fn write_at<B: Lend>(&self, buffer: B, offset: u64) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Write, Some(offset), buffer)
    }

    /// Writes all of the buffer, as to a pipe. Writes under way at once may mix.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    pub fn write<B: Lend>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Write, None, buffer)
    }
}
