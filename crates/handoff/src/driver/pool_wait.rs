//! Waiting for a buffer of a pool, with a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::fd::RawFd;
use std::time::Duration;

use super::Driver;
use crate::error::{Error, Result};
use crate::memory::{BufferPool, Piece};

impl Driver {
    /// Waits for a free buffer of a pool, at most for `time`.
    ///
    /// # Errors
    ///
    /// [`Error::PoolEmpty`] after that time. It says who holds how many buffers: the sockets and files of
    /// this driver by their descriptors, then the rest.
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

    /// Who holds how many buffers of a pool, in words.
    fn holders(&self, pool: &BufferPool) -> String {
        // A buffer that is split or frozen may be in several operations.
        let mut by_file: BTreeMap<Option<RawFd>, BTreeSet<u32>> = BTreeMap::new();
        self.reactor.core.records.borrow().each_loan(|fd, loan| {
            let numbers = loan.pieces().iter().filter_map(|piece: &Piece| pool.number_of(piece));
            by_file.entry(fd).or_default().extend(numbers);
        });
        by_file.retain(|_, numbers| !numbers.is_empty());
        let lent: BTreeSet<u32> = by_file.values().flatten().copied().collect();
        let mut words = String::new();
        for (fd, numbers) in &by_file {
            let _ = match fd {
                Some(fd) => write!(words, "{} are on loan on descriptor {fd}, ", numbers.len()),
                None => write!(words, "{} are on loan on closed sockets, ", numbers.len()),
            };
        }
        // A buffer may have come back since.
        let rest = pool.buffers().saturating_sub(lent.len() + pool.free());
        let _ = write!(words, "{rest} are with the program, its groups or other drivers");
        words
    }
}
