//! Files as a source: reads into lent buffers.
//!
//! Minimum kernel: 5.1 (`READ_FIXED` for registered buffers, else `READ`, 5.6). Capability: none.
//! Return signal: the completion.

use crate::engine::transfer::Direction;
use crate::error::Result;
use crate::file::{File, Transfer};
use crate::lease::{LendMut, Refused};

impl File {
    /// Reads at `offset` until the buffer's length in use is filled or the file ends.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when too many operations are under way, or the offset is 2^63 or more.
    pub fn read_at<B: LendMut>(&self, buffer: B, offset: u64) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Read, Some(offset), buffer)
    }

    /// Reads what there is, as from a pipe; 0 bytes are its end.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn read<B: LendMut>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Read, None, buffer)
    }
}
