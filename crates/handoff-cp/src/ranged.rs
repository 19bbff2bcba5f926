//! A file that is read or written at offsets, past the page cache where possible.
//!
//! Contracts:
//! - a piece that begins and ends on [`ALIGNMENT`] goes past the page cache, if that is wanted and the file
//!   system can do it; any other goes through it;
//! - no page is used in both ways, so neither undoes what the other wrote;
//! - bytes that go through the page cache count as copied, the others as not.

use std::cell::Cell;
use std::rc::Rc;

use handoff::{Driver, File, Payload, PayloadMut, Span, Tally, Transfer, Transferred};
use handoff_command::Failure;
use handoff_command::failure::Failed;
use rustix::io::Errno;

/// A page: the largest alignment that direct I/O asks for on common devices.
pub(crate) const ALIGNMENT: u64 = 4096;

/// The file.
#[derive(Clone)]
pub(crate) struct Ranged {
    buffered: File,
    direct: Option<File>,
    tally: Rc<Cell<Tally>>,
    /// Alignment of pieces of memory that are written together.
    unit: Rc<Cell<usize>>,
    /// Its name in messages.
    name: Rc<str>,
}

fn is_aligned(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(ALIGNMENT) && (len as u64).is_multiple_of(ALIGNMENT)
}

impl Ranged {
    /// `direct` is the same file, opened past the page cache.
    pub(crate) fn new(
        driver: &Driver,
        buffered: std::fs::File,
        direct: Option<File>,
        name: String,
    ) -> Result<Self, Failure> {
        let alignment = direct.as_ref().and_then(File::alignment);
        let unit = alignment
            .filter(|it| ALIGNMENT.is_multiple_of(it.blocks as u64))
            .map_or(ALIGNMENT as usize, |it| it.memory);
        Ok(Self {
            buffered: driver.file(buffered).failed("attaching a file")?,
            unit: Rc::new(Cell::new(unit)),
            direct,
            tally: Rc::default(),
            name: name.into(),
        })
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether any of it can go past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Address and length of each piece that goes past the page cache with others are multiples of this.
    pub(crate) fn unit(&self) -> usize {
        self.unit.get()
    }

    /// Reports what the file system cannot do.
    #[cfg(test)]
    pub(crate) fn claim_unit(&self, unit: usize) {
        self.unit.set(unit);
    }

    /// The length of the next piece, at most `most` bytes of the `left` ones: the unaligned end of a file
    /// is a piece of its own.
    pub(crate) fn piece(&self, most: usize, left: u64) -> usize {
        let len = left.min(most as u64);
        let over = len % ALIGNMENT;
        if self.direct.is_some() && over < len { (len - over) as usize } else { len as usize }
    }

    fn file_for(&self, offset: u64, len: usize) -> &File {
        self.direct.as_ref().filter(|_| is_aligned(offset, len)).unwrap_or(&self.buffered)
    }

    fn count(&self, offset: u64, len: usize) {
        let mut tally = self.tally.get();
        if self.direct.is_some() && is_aligned(offset, len) {
            tally.zero_copy += len as u64;
        } else {
            tally.copied += len as u64;
        }
        self.tally.set(tally);
    }

    /// Fills the buffer's length in use from `offset` on.
    ///
    /// # Errors
    ///
    /// Errors of the file system, and a file that ends early.
    pub(crate) async fn read<B: PayloadMut>(
        &self,
        buffer: B,
        len: usize,
        offset: u64,
    ) -> Result<B, Failure> {
        let reading = self.file_for(offset, len).read_at(buffer, offset);
        let read = reading.failed("reading")?.await.failed("reading")?;
        let got = read.result.failed(&format!("reading {}", self.name))?;
        if got < len {
            return Err(Failure::failed(format!(
                "{} was cut while it was read: it ends at {}",
                self.name,
                offset + got as u64
            )));
        }
        self.count(offset, len);
        Ok(read.buffer)
    }

    /// Begins to write a buffer of `len` bytes to `offset`.
    ///
    /// # Errors
    ///
    /// When too much is under way; the [`Transfer`] reports errors of the write itself.
    pub(crate) fn write<B: Payload>(
        &self,
        buffer: B,
        len: usize,
        offset: u64,
    ) -> Result<Transfer<B>, Failure> {
        let writing = self.file_for(offset, len).write_at(buffer, offset);
        let writing = writing.failed("writing")?;
        self.count(offset, len);
        Ok(writing)
    }

    /// Begins to write pieces, each at multiples of [`unit`](Self::unit), that fill pages from `offset` on.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub(crate) fn write_pieces(
        &self,
        pieces: Vec<Span>,
        offset: u64,
    ) -> Result<Transfer<Vec<Span>>, Failure> {
        let file = self.direct.as_ref().unwrap_or(&self.buffered);
        file.write_at(pieces, offset).failed("writing")
    }

    /// Ends such a write: returns the pieces if the disk takes none of them, and asks for whole pages from
    /// then on.
    ///
    /// # Errors
    ///
    /// As [`written`](Self::written).
    pub(crate) fn pieces_written(
        &self,
        over: handoff::Result<Transferred<Vec<Span>>>,
    ) -> Result<Option<Vec<Span>>, Failure> {
        // If pieces go as several requests, the kernel reports the refusal as an I/O error, like a disk's own. A
        // write from one buffer then shows which it was.
        let refusals = [Errno::INVAL, Errno::IO].map(Errno::raw_os_error);
        let over = over.failed("writing")?;
        let refused = over.result.as_ref().err().and_then(handoff::Error::raw_os_error);
        if refused.is_some_and(|errno| refusals.contains(&errno)) {
            self.unit.set(ALIGNMENT as usize);
            return Ok(Some(over.buffer));
        }
        let mut tally = self.tally.get();
        tally.zero_copy +=
            self.written(Ok(over))?.iter().map(|span| span.len() as u64).sum::<u64>();
        self.tally.set(tally);
        Ok(None)
    }

    /// The buffer of a finished write.
    ///
    /// # Errors
    ///
    /// The file system's error, or that the driver is gone.
    pub(crate) fn written<B>(&self, over: handoff::Result<Transferred<B>>) -> Result<B, Failure> {
        let over = over.failed("writing")?;
        over.result.failed(&format!("writing {}", self.name))?;
        Ok(over.buffer)
    }

    /// Bytes read or written, by whether the CPU copied them.
    pub(crate) fn tally(&self) -> Tally {
        self.tally.get()
    }

    /// Why such a file's tally is as it is.
    pub(crate) fn reason(&self, tally: Tally) -> String {
        match (self.direct.is_some(), tally) {
            (false, _) => "through the page cache; --direct goes past it".to_owned(),
            (true, Tally { copied: 0, .. }) => "past the page cache".to_owned(),
            (true, _) => format!(
                "past the page cache, but for what does not fill a page of {ALIGNMENT} bytes"
            ),
        }
    }
}
