//! Reads and writes of the room at the end of a leg: nothing is decided here, and no memory is taken but the stack.
//!
//! Kernel interface: pread(2), pwrite(2) and fdatasync(2), of whole pages at multiples of a page, so that files opened
//! with O_DIRECT take them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::bitmap::Bitmap;
use super::layout::{self, Layout};
use super::leg_record::{Copies, LegRecord, Unreadable};
use super::page::{PAGE, Page};

/// Memory that O_DIRECT takes.
#[repr(C, align(4096))]
struct Aligned(Page);

fn read(leg: &File, at: u64) -> io::Result<Page> {
    let mut page = Aligned([0; PAGE as usize]);
    leg.read_exact_at(&mut page.0, at)?;
    Ok(page.0)
}

fn write(leg: &File, at: u64, page: &Page) -> io::Result<()> {
    #[cfg(test)]
    take_write()?;
    leg.write_all_at(&Aligned(*page).0, at)
}

#[cfg(test)]
thread_local! {
    /// How many writes this thread may make before it is as if it were killed.
    pub(super) static WRITES_LEFT: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(super) fn take_write() -> io::Result<()> {
    match WRITES_LEFT.get() {
        Some(0) => Err(io::Error::other("killed")),
        left => {
            WRITES_LEFT.set(left.map(|left| left - 1));
            Ok(())
        }
    }
}

/// The record of a leg that ends there, or used to end there. Flushes first, since what can be read may still be lost.
pub(super) fn read_record(leg: &File, end: u64) -> io::Result<Result<Copies, Unreadable>> {
    leg.sync_data()?;
    peek_record(leg, end)
}

/// The same, which may still be lost.
pub(super) fn peek_record(leg: &File, end: u64) -> io::Result<Result<Copies, Unreadable>> {
    if end < Layout::least_end() {
        return Ok(Err(Unreadable::Nothing));
    }
    let pages = [read(leg, layout::copy_at(end, 0))?, read(leg, layout::copy_at(end, 1))?];
    Ok(Copies::of([&pages[0], &pages[1]], end))
}

/// Makes a record durable in both copies, in this order ([`Copies::order`] of what was just read).
pub(super) fn write_record(leg: &File, record: &LegRecord, order: [usize; 2]) -> io::Result<()> {
    let page = record.encode();
    for copy in order {
        write(leg, layout::copy_at(record.end, copy), &page)?;
        leg.sync_data()?;
    }
    Ok(())
}

/// Adds the bits of a leg. Returns whether all of them were whole.
pub(super) fn read_bitmap(leg: &File, record: &LegRecord, bitmap: &mut Bitmap) -> io::Result<bool> {
    let start = record.layout.bitmap_at(record.end);
    let mut whole = true;
    for page in 0..record.layout.pages() {
        whole &= bitmap.add(page as usize, &read(leg, start + page * PAGE)?);
    }
    Ok(whole)
}

/// Writes pages of the bitmap, and does not flush them.
pub(super) fn write_bitmap(
    leg: &File,
    record: &LegRecord,
    bitmap: &Bitmap,
    pages: impl IntoIterator<Item = usize>,
) -> io::Result<()> {
    write_pages(leg, record.layout.bitmap_at(record.end), bitmap, pages)
}

/// Writes pages of a bitmap that begins there, and does not flush them.
pub(super) fn write_pages(
    leg: &File,
    start: u64,
    bitmap: &Bitmap,
    pages: impl IntoIterator<Item = usize>,
) -> io::Result<()> {
    for page in pages {
        write(leg, start + page as u64 * PAGE, &bitmap.encode(page))?;
    }
    Ok(())
}

/// Takes the memory that reading and writing takes, on a file that keeps nothing.
pub(super) fn rehearse() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return };
    let bitmap = Bitmap::clear([0; 16], 1);
    let _ = write_pages(&null, 0, &bitmap, [0]);
    let _ = read(&null, 0);
    let _ = null.sync_data();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::leg_record::tests::record;

    #[test]
    fn a_leg_keeps_its_record_and_bits() {
        let leg = tempfile::tempfile().expect("a file");
        let record = record(0, 2);
        leg.set_len(record.end + 512).expect("made");
        let end = layout::end(record.end + 512);
        assert_eq!(read_record(&leg, end).expect("read"), Err(Unreadable::Nothing));
        assert_eq!(read_record(&leg, 4096).expect("read"), Err(Unreadable::Nothing));
        write_record(&leg, &record, [1, 0]).expect("written");
        let copies = read_record(&leg, end).expect("read").expect("a record");
        assert_eq!((&copies.record, copies.differ), (&record, false));
        let chunks = record.layout.chunks();
        let mut bitmap = Bitmap::clear(record.uuid, chunks);
        assert!(!read_bitmap(&leg, &record, &mut bitmap).expect("read"), "nobody wrote it");
        let mut bitmap = Bitmap::clear(record.uuid, chunks);
        bitmap.put(3, true);
        write_bitmap(&leg, &record, &bitmap, [0]).expect("written");
        let mut read = Bitmap::clear(record.uuid, chunks);
        assert!(read_bitmap(&leg, &record, &mut read).expect("read"));
        assert_eq!(read, bitmap);
    }
}
