//! Pages of a file that are not in the page cache: the ring reads them, so that a splice does not wait for the disk.
//!
//! Minimum kernel: 4.14 (`RWF_NOWAIT`), and a ring. Capability: none. Return signal: none.
//!
//! Contracts:
//! - a look costs one or two calls, which read a byte; what lies between the looks may be cold all the same;
//! - where the kernel does not tell, pages count as cached; errors are left to whoever reads next.

use std::io::IoSliceMut;
use std::ops::Range;
use std::rc::Rc;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::file::File;
use crate::memory::Buffer;
use crate::reactor::Reactor;

/// Bytes of a read.
const PIECE: usize = 128 << 10;

/// Whether the driver can read pages, and the first or last of a range are not in the page cache.
pub(super) fn is_cold(driver: &Reactor, file: &File, range: &Range<u64>) -> bool {
    if range.is_empty() || !driver.core.io.has_ring() {
        return false;
    }
    let is_cold = |at| {
        let looked = preadv2(file, &mut [IoSliceMut::new(&mut [0])], at, ReadWriteFlags::NOWAIT);
        looked == Err(Errno::AGAIN)
    };
    is_cold(range.start) || is_cold(range.end - 1)
}

/// Reads a range into the page cache, if it is cold.
pub(super) async fn read_ahead(driver: &Rc<Reactor>, file: &File, range: Range<u64>) {
    if !is_cold(driver, file, &range) {
        return;
    }
    let mut at = range.start;
    let mut buffer = Buffer::from(vec![0; PIECE]);
    while at < range.end {
        buffer.set_len((range.end - at).min(PIECE as u64) as usize);
        let Ok(reading) = file.read_at(buffer, at) else { return };
        let Ok(read) = reading.await else { return };
        match read.result {
            Ok(len) if len > 0 => at += len as u64,
            _ => return,
        }
        buffer = read.buffer;
    }
}
