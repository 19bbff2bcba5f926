//! Received bytes on their way to a file past the page cache: gathered in aligned memory.
//!
//! Direct writes take whole pages of aligned memory, and received bytes usually begin anywhere. One more
//! copy by us replaces the one into the page cache; it is counted as a hop of its own.

use std::collections::VecDeque;

use handoff::{Buffer, Span, Transfer};
use handoff_command::Failure;

use crate::job::Job;
use crate::ranged::{ALIGNMENT, Ranged};

/// Buffers of one connection: one is filled while the others are written.
const BUFFERS: usize = 3;

/// Gathers the bytes of one connection.
pub(crate) struct Staging<'a> {
    file: &'a Ranged,
    capacity: usize,
    free: Vec<Buffer>,
    /// The buffer being filled, and the offset of its first byte.
    filling: Option<(Buffer, u64)>,
    filled: usize,
    writes: VecDeque<Transfer<Buffer>>,
    copied: u64,
}

impl<'a> Staging<'a> {
    /// # Errors
    ///
    /// When there is no memory.
    pub(crate) fn new(job: &Job<'_>, file: &'a Ranged) -> Result<Self, Failure> {
        let capacity = job.order.args.buffer.next_multiple_of(ALIGNMENT as usize);
        let mut region = job.region(capacity * BUFFERS)?;
        job.register(&region);
        let mut free = region.chunks(capacity);
        free.truncate(BUFFERS);
        let writes = VecDeque::new();
        Ok(Self { file, capacity, free, filling: None, filled: 0, writes, copied: 0 })
    }

    /// Takes bytes for `offset`; `last` if later bytes belong elsewhere.
    ///
    /// # Errors
    ///
    /// Those of earlier writes.
    pub(crate) async fn put(
        &mut self,
        bytes: &[u8],
        offset: u64,
        last: bool,
    ) -> Result<(), Failure> {
        let (mut bytes, mut offset) = (bytes, offset);
        while !bytes.is_empty() {
            let (mut buffer, start) = match self.filling.take() {
                Some(filling) => filling,
                None => (self.buffer().await?, offset),
            };
            // A buffer that begins within a page ends with it, so that the next is aligned.
            let room = self.capacity - (start % ALIGNMENT) as usize;
            let taken = bytes.len().min(room - self.filled);
            buffer.set_len(self.capacity);
            buffer[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.copied += taken as u64;
            self.filled += taken;
            bytes = &bytes[taken..];
            offset += taken as u64;
            self.filling = Some((buffer, start));
            if self.filled == room {
                self.flush().await?;
            }
        }
        if last { self.flush().await } else { Ok(()) }
    }

    /// Writes bytes for `offset`, a page's boundary, while others are gathered.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub(crate) async fn put_apart(&mut self, spans: &[Span], offset: u64) -> Result<(), Failure> {
        let gathered = (self.filling.take(), std::mem::take(&mut self.filled));
        let mut at = offset;
        for span in spans {
            self.put(span, at, false).await?;
            at += span.len() as u64;
        }
        self.flush().await?;
        (self.filling, self.filled) = gathered;
        Ok(())
    }

    /// A free buffer, once there is one.
    async fn buffer(&mut self) -> Result<Buffer, Failure> {
        if let Some(buffer) = self.free.pop() {
            return Ok(buffer);
        }
        match self.writes.pop_front() {
            Some(write) => self.file.written(write.await),
            None => Err(Failure::failed("no memory to gather bytes in")),
        }
    }

    /// Writes gathered bytes: whole pages past the page cache, the rest through it.
    ///
    /// # Errors
    ///
    /// Those of earlier writes.
    pub(crate) async fn flush(&mut self) -> Result<(), Failure> {
        let Some((mut buffer, start)) = self.filling.take() else { return Ok(()) };
        let filled = std::mem::take(&mut self.filled);
        let whole =
            if start.is_multiple_of(ALIGNMENT) { filled - filled % ALIGNMENT as usize } else { 0 };
        if whole < filled && whole > 0 {
            buffer.set_len(whole);
            let write = self.file.write(buffer, whole, start)?;
            buffer = self.file.written(write.await)?;
            buffer.set_len(self.capacity);
            buffer.copy_within(whole..filled, 0);
            buffer.set_len(filled - whole);
            let write = self.file.write(buffer, filled - whole, start + whole as u64)?;
            self.writes.push_back(write);
        } else {
            buffer.set_len(filled);
            self.writes.push_back(self.file.write(buffer, filled, start)?);
        }
        Ok(())
    }

    /// Waits for all writes; returns the bytes copied on the way.
    ///
    /// # Errors
    ///
    /// Those of the writes.
    pub(crate) async fn finish(mut self) -> Result<u64, Failure> {
        self.flush().await?;
        for write in self.writes {
            self.file.written(write.await)?;
        }
        Ok(self.copied)
    }
}
