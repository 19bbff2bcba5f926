//! An export on the driver of a thread.
//!
//! Contracts:
//! - a read that finds the file's end where there was more fails: nobody gets bytes that are not there;
//! - a write of parts of blocks reads the blocks, alone, and writes them back whole.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use handoff::{Advice, Allocation, Buffer, Driver, Error, File, KernelSource, Result, RwFlags};

use crate::export::Export;
use crate::extents;
use crate::pieces::Piece;
use crate::served::Counters;
use crate::start::{call, start};

pub(crate) struct Disk {
    driver: Driver,
    pub(crate) export: Arc<Export>,
    cached: File,
    direct: Option<File>,
    overlay: Option<File>,
    /// Lends the page cache's pages.
    source: Option<KernelSource>,
    counters: Rc<Counters>,
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    File,
    Overlay,
    /// Nowhere: they are zeroes.
    Hole,
}

fn shrank() -> Error {
    Error::Invalid("the file has become shorter than the export")
}

impl Disk {
    /// Attaches an export. `notes` gets why its pages are not lent.
    ///
    /// # Errors
    ///
    /// When there are no descriptors.
    pub(crate) fn new(
        driver: &Driver,
        export: &Arc<Export>,
        counters: &Rc<Counters>,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let attach = |fd: &std::os::fd::OwnedFd| {
            let action = "sharing a file among threads";
            let fd = fd.try_clone().map_err(|source| Error::Io { action, source })?;
            driver.file(fd)
        };
        let source = match export.is_direct() {
            true => None,
            false => match driver.get_buf().and_then(|device| device.source(&export.cached)) {
                Ok(source) => Some(source),
                Err(Error::EngineUnavailable { reason, .. } | Error::NoRing { reason, .. }) => {
                    notes.push(format!("pages are not lent (get-buf): {reason}"));
                    None
                }
                Err(error) => {
                    notes.push(format!("pages are not lent (get-buf): {error}"));
                    None
                }
            },
        };
        Ok(Self {
            driver: driver.clone(),
            cached: attach(&export.cached)?,
            direct: export.direct.as_ref().map(attach).transpose()?,
            overlay: export.overlay.as_ref().map(|it| attach(&it.file)).transpose()?,
            source,
            export: Arc::clone(export),
            counters: Rc::clone(counters),
        })
    }

    /// What lends pages of the file.
    pub(crate) fn source(&self) -> Option<&KernelSource> {
        self.source.as_ref()
    }

    /// The first part of a range that lies in one place. Holes are found only if they are asked for.
    pub(crate) fn first(&self, range: Range<u64>, holes: bool) -> (Range<u64>, Place) {
        let holes = holes && self.export.tells_extents();
        let Some(overlay) = &self.export.overlay else {
            return match holes.then(|| extents::first(&self.cached, range.clone())) {
                Some((part, true)) => (part, Place::Hole),
                Some((part, false)) => (part, Place::File),
                None => (range, Place::File),
            };
        };
        let (part, is_here) = overlay.first(range);
        let (fd, place) = match is_here {
            true => (&overlay.file, Place::Overlay),
            false => (&self.export.cached, Place::File),
        };
        match holes.then(|| extents::first(fd, part.clone())) {
            Some((part, true)) => (part, Place::Hole),
            Some((part, false)) => (part, place),
            None => (part, place),
        }
    }

    /// The file that has these bytes, and whether the device moves them.
    fn file(&self, place: Place) -> (&File, bool) {
        match (place, &self.direct, &self.overlay) {
            (Place::Overlay, _, Some(overlay)) => (overlay, false),
            (_, Some(direct), _) => (direct, true),
            _ => (&self.cached, false),
        }
    }

    /// Reads a piece, which lies in one place; the buffer begins with its first whole block. Returns what is wanted of it.
    ///
    /// # Errors
    ///
    /// Those of the file, or its end.
    pub(crate) async fn read(
        &self,
        place: Place,
        piece: &Piece,
        mut buffer: Buffer,
    ) -> Result<Buffer> {
        let (file, is_direct) = self.file(place);
        buffer.set_len(piece.whole_len());
        let read = |buffer| file.read_at(buffer, piece.whole.start);
        let read = start(&self.driver, buffer, read).await?.await?;
        let mut buffer = read.buffer;
        if read.result? < piece.before() + piece.len() {
            return Err(shrank());
        }
        let before = buffer.split_to(piece.before());
        drop(before);
        buffer.set_len(piece.len());
        self.counters.write(|served| served.count_read(is_direct, piece.len() as u64));
        Ok(buffer)
    }

    /// Writes a piece from a buffer that has room for its whole blocks and begins with the first; what is wanted of it is
    /// filled.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub(crate) async fn write(&self, piece: &Piece, mut buffer: Buffer, fua: bool) -> Result<()> {
        let whole = piece.whole.clone();
        let _taken = self.export.ranges.take(whole.clone(), !piece.is_whole()).await;
        buffer.set_len(piece.whole_len());
        if !piece.is_whole() {
            self.fill_around(piece, &mut buffer).await?;
        }
        let place = if self.overlay.is_some() { Place::Overlay } else { Place::File };
        let (file, is_direct) = self.file(place);
        // By the page cache a sync follows when all is written: the kernel might tell this write of another's failure.
        let syncs = fua && is_direct;
        let flags = if syncs { RwFlags::DSYNC } else { RwFlags::NONE };
        let write = |buffer| file.write_at_with(buffer, whole.start, flags);
        let written = start(&self.driver, buffer, write).await?.await?;
        let result = written.result;
        if let (Err(error), true) = (&result, syncs) {
            self.look_at(error);
        }
        if result? < piece.whole_len() {
            return Err(Error::Invalid("the file took a part of a write only"));
        }
        if let Some(overlay) = &self.export.overlay {
            overlay.wrote(whole);
        }
        self.counters.write(|served| served.count_written(is_direct, piece));
        Ok(())
    }

    /// Fills what a piece does not want of its first and last block with what is there.
    async fn fill_around(&self, piece: &Piece, buffer: &mut Buffer) -> Result<()> {
        let grain = self.export.layout.grain;
        let first = piece.whole.start;
        let last = (piece.whole.end - 1) & !(grain - 1);
        let both = [first, last];
        let blocks = if first == last { &both[..1] } else { &both[..] };
        for &start in blocks {
            let end = (start + grain).min(piece.whole.end);
            let gaps = [start..piece.wanted.start.min(end), piece.wanted.end.max(start)..end];
            if gaps.iter().all(|gap| gap.start >= gap.end) {
                continue;
            }
            let block = self.block(start..end).await?;
            for gap in gaps.into_iter().filter(|gap| gap.start < gap.end) {
                let from = (gap.start - start) as usize..(gap.end - start) as usize;
                let to = (gap.start - first) as usize..(gap.end - first) as usize;
                buffer[to].copy_from_slice(&block[from]);
            }
        }
        Ok(())
    }

    /// Reads one block, from where it lies.
    async fn block(&self, range: Range<u64>) -> Result<Buffer> {
        let len = (range.end - range.start) as usize;
        let mut region = handoff::Region::anonymous(len.max(4096))?;
        let buffer = region.take(len).ok_or(Error::Invalid("a region has room for a block"))?;
        let (part, place) = self.first(range.clone(), false);
        let piece = Piece { wanted: range.clone(), whole: range };
        if part != piece.whole {
            return Err(Error::Invalid("a block lies in one place"));
        }
        self.read(place, &piece, buffer).await
    }

    /// Makes whole blocks zero without writing them; whether the file can do that.
    ///
    /// # Errors
    ///
    /// Those of the file, but that it cannot.
    pub(crate) async fn punch(&self, range: Range<u64>, keeps: bool) -> Result<bool> {
        let _taken = self.export.ranges.take(range.clone(), false).await;
        let file = self.overlay.as_ref().unwrap_or(&self.cached);
        let how = if keeps { Allocation::ZeroKeepSize } else { Allocation::PunchHole };
        let len = range.end - range.start;
        match call(&self.driver, || file.allocate(range.start, len, how)).await {
            Ok(()) => {}
            Err(error) if is_lack(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        if let Some(overlay) = &self.export.overlay {
            overlay.wrote(range);
        }
        Ok(true)
    }

    /// Has the kernel read a range into the page cache.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub(crate) async fn prefetch(&self, range: Range<u64>) -> Result<()> {
        let len = range.end - range.start;
        call(&self.driver, || self.cached.advise(range.start, len, Advice::WillNeed)).await
    }

    /// Puts all that was written on the device.
    ///
    /// # Errors
    ///
    /// Those of the device; always, once it has failed.
    pub(crate) async fn sync(&self) -> Result<()> {
        if self.overlay.is_some() {
            return Ok(());
        }
        // The kernel tells a failure once, to one of those who sync side by side.
        let _turn = self.export.syncs.take(0..1, true).await;
        if !self.export.has_failed() {
            let synced = call(&self.driver, || self.cached.sync_data()).await;
            match &synced {
                Ok(()) => {}
                Err(error) => self.export.sync_failed(error),
            }
            synced?;
        }
        // Another thread's may have failed meanwhile.
        match self.export.has_failed() {
            false => Ok(()),
            true => {
                Err(Error::Invalid("an earlier sync failed, so nobody knows what is on the device"))
            }
        }
    }

    /// Puts a write on the device that was to be there when it is over.
    ///
    /// # Errors
    ///
    /// As of [`sync`](Self::sync).
    pub(crate) async fn finish_fua(&self) -> Result<()> {
        match self.direct.is_some() {
            true => Ok(()),
            false => self.sync().await,
        }
    }

    /// A write that was to be on the device failed: the kernel may have told by it that others are not.
    fn look_at(&self, error: &Error) {
        if error.raw_os_error() == Some(libc::EIO) {
            self.export.sync_failed(error);
        }
    }
}

fn is_lack(error: &Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::ENODEV)
    )
}
