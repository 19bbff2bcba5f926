//! Waiting for a buffer of a pool, but not for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::fd::RawFd;
use std::time::Duration;

use super::Driver;
use crate::error::{Error, Result};
use crate::memory::{BufferPool, Piece};

impl Driver {
    /// A buffer of a pool, as soon as one is free, if that is within `time`.
    ///
    /// # Errors
    ///
    /// [`Error::PoolEmpty`] after that time, which says what has how many: the sockets and files of this
    /// driver by their descriptors, and then the rest.
    pub async fn get_within(&self, pool: &BufferPool, time: Duration) -> Result<crate::Buffer> {
        if let Some(buffer) = pool.try_get() {
            return Ok(buffer);
        }
        match self.timeout(time, pool.get()).await {
            Err(Error::TimedOut { after }) => Err(Error::PoolEmpty {
                waited: after,
                buffers: pool.buffers(),
                len: pool.buffer_len(),
                holders: self.holders(pool),
            }),
            got => got,
        }
    }

    /// Who has how many buffers of a pool, in words.
    fn holders(&self, pool: &BufferPool) -> String {
        // A buffer that is split or frozen may be in several operations.
        let mut by_file: BTreeMap<RawFd, BTreeSet<u32>> = BTreeMap::new();
        self.reactor.records.borrow().each_loan(|fd, loan| {
            let numbers = loan.pieces().iter().filter_map(|piece: &Piece| pool.number_of(piece));
            by_file.entry(fd).or_default().extend(numbers);
        });
        by_file.retain(|_, numbers| !numbers.is_empty());
        let lent: BTreeSet<u32> = by_file.values().flatten().copied().collect();
        let mut words = String::new();
        for (fd, numbers) in &by_file {
            let _ = write!(words, "{} are on loan on descriptor {fd}, ", numbers.len());
        }
        let rest = pool.buffers() - lent.len();
        let _ = write!(words, "{rest} are with the program, its groups or other drivers");
        words
    }
}
