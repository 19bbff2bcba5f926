//! The bytes of one connection on their way past the page cache, from where the NIC has put them.
//!
//! Direct writes take whole blocks, and a NIC delivers by the packet. Spans at multiples of what the disk's DMA
//! asks for are gathered, and go to the disk several at once, as the whole pages of the file that they fill. Bytes at
//! odd places are [staged](crate::staging), which copies them.
//!
//! Contracts:
//! - bytes go where they belong, each once: bytes held here directly precede those that come next;
//! - a disk that refuses such pieces nevertheless gets copies, also from then on, and a note says so;
//! - at most [`PIECES`] spans are held while nothing comes, and [`VECTORS`] times that are on their way.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};

use handoff::{Span, Transfer, Transferred};
use handoff_command::Failure;

use crate::job::Job;
use crate::ranged::{ALIGNMENT, Ranged};
use crate::staging::Staging;

/// Bytes of spans that are written together. On ext4 each write costs as many instructions as copying some
/// 400 KiB.
const RUN: usize = 512 << 10;

/// The most spans held, since each keeps a chunk from the NIC. So many go to a disk as one request
/// (`BIO_MAX_VECS`), with one answer.
const PIECES: usize = 256;

/// The most writes of spans under way.
const VECTORS: usize = 3;

/// Memory in chunks of an rx queue that each connection may hold, in bytes, if a chunk is a page: gathered spans,
/// and spans being written.
pub(crate) const HELD: usize = (1 + VECTORS) * PIECES * ALIGNMENT as usize;

/// Gathers the bytes of one connection.
pub(crate) struct Gathering<'a> {
    file: &'a Ranged,
    job: &'a Job<'a>,
    /// Consecutive spans, from a page's boundary in the file on.
    run: Vec<Span>,
    start: u64,
    len: usize,
    /// With their offsets, oldest first.
    writes: VecDeque<(Transfer<Vec<Span>>, u64)>,
    staging: Staging<'a>,
}

/// From here to the next page's boundary.
fn to_boundary(offset: u64) -> usize {
    (offset.next_multiple_of(ALIGNMENT) - offset) as usize
}

impl<'a> Gathering<'a> {
    /// # Errors
    ///
    /// When there is no memory.
    pub(crate) fn new(job: &'a Job<'a>, file: &'a Ranged) -> Result<Self, Failure> {
        let staging = Staging::new(job, file)?;
        let (run, writes) = (Vec::new(), VecDeque::new());
        Ok(Self { file, job, run, start: 0, len: 0, writes, staging })
    }

    /// Takes bytes for `offset`; `last` if later bytes belong elsewhere.
    ///
    /// # Errors
    ///
    /// Those of earlier writes.
    pub(crate) async fn put(
        &mut self,
        mut span: Span,
        mut offset: u64,
        last: bool,
    ) -> Result<(), Failure> {
        let fitting = self.fitting(&span);
        if fitting > 0 {
            let rest = if fitting < span.len() { Some(span.split_to(fitting)) } else { None };
            let (head, rest) = match rest {
                Some(head) => (head, Some(span)),
                None => (span, None),
            };
            self.take(head, offset).await?;
            offset += fitting as u64;
            match rest {
                Some(rest) => span = rest,
                None if last => return self.flush().await,
                None => return Ok(()),
            }
        }
        self.end_run().await?;
        self.staging.put(&span, offset, false).await?;
        if last { self.flush().await } else { Ok(()) }
    }

    /// How many of the first bytes can be written in place. A span of a pool keeps much more of the pool than
    /// its bytes, so it is not held, and goes only as whole pages.
    fn fitting(&self, span: &Span) -> usize {
        let unit = if span.is_of_queue() { self.file.unit() } else { ALIGNMENT as usize };
        match span.as_ptr().addr().is_multiple_of(unit) {
            true => span.len() - span.len() % unit,
            false => 0,
        }
    }

    /// Takes bytes that can be written in place; bytes before a page's boundary go where the others of that
    /// page went.
    async fn take(&mut self, mut span: Span, mut offset: u64) -> Result<(), Failure> {
        if self.run.is_empty() {
            let before = to_boundary(offset);
            let reaches = before < span.len() && before.is_multiple_of(self.file.unit());
            if !reaches || (before > 0 && !span.is_of_queue()) {
                return self.staging.put(&span, offset, false).await;
            }
            if before > 0 {
                let head = span.split_to(before);
                self.staging.put(&head, offset, false).await?;
                offset += before as u64;
            }
            self.staging.flush().await?;
            self.start = offset;
        }
        let of_queue = span.is_of_queue();
        self.len += span.len();
        self.run.push(span);
        if self.len >= RUN || self.run.len() == PIECES || !of_queue {
            self.write_pages().await?;
        }
        // Too short to fill a page.
        if self.run.len() == PIECES { self.end_run().await } else { Ok(()) }
    }

    /// Writes the pages that the run fills; less than one is left of it.
    async fn write_pages(&mut self) -> Result<(), Failure> {
        let over = self.len % ALIGNMENT as usize;
        let whole = self.len - over;
        if whole == 0 {
            return Ok(());
        }
        let mut left = whole;
        let at = self.run.iter().position(|span| match left.checked_sub(span.len()) {
            Some(behind) => {
                left = behind;
                false
            }
            None => true,
        });
        let mut rest = self.run.split_off(at.unwrap_or(self.run.len()));
        if left > 0 {
            self.run.push(rest[0].split_to(left));
        }
        let spans = std::mem::replace(&mut self.run, rest);
        let offset = self.start;
        (self.start, self.len) = (offset + whole as u64, over);
        self.writes.push_back((self.file.write_pieces(spans, offset)?, offset));
        if self.writes.len() > VECTORS { self.wait_for_one().await } else { Ok(()) }
    }

    /// Waits for the oldest write, and finishes it.
    async fn wait_for_one(&mut self) -> Result<(), Failure> {
        let Some((write, offset)) = self.writes.pop_front() else { return Ok(()) };
        let over = write.await;
        self.end_write(over, offset).await
    }

    /// The oldest write, once it is over, with its offset: for [`end_write`](Self::end_write). Without a write it
    /// never ends.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut task::Context<'_>,
    ) -> Poll<(handoff::Result<Transferred<Vec<Span>>>, u64)> {
        let Some((oldest, offset)) = self.writes.front_mut() else { return Poll::Pending };
        let over = Pin::new(oldest).poll(context).map(|over| (over, *offset));
        if over.is_ready() {
            self.writes.pop_front();
        }
        over
    }

    /// Finishes a write: gives its chunks back, and copies what the disk refused.
    ///
    /// # Errors
    ///
    /// Those of the write.
    pub(crate) async fn end_write(
        &mut self,
        over: handoff::Result<Transferred<Vec<Span>>>,
        offset: u64,
    ) -> Result<(), Failure> {
        let Some(refused) = self.file.pieces_written(over)? else { return Ok(()) };
        self.job.order.note(
            "the disk takes no pieces of a page, in spite of what it says: they are copied first"
                .to_owned(),
        );
        self.staging.put_apart(&refused, offset).await
    }

    /// Later bytes cannot be written with the run.
    async fn end_run(&mut self) -> Result<(), Failure> {
        self.write_pages().await?;
        let mut offset = self.start;
        self.len = 0;
        for span in self.run.drain(..) {
            self.staging.put(&span, offset, false).await?;
            offset += span.len() as u64;
        }
        Ok(())
    }

    /// Later bytes belong elsewhere.
    async fn flush(&mut self) -> Result<(), Failure> {
        self.end_run().await?;
        self.staging.flush().await
    }

    /// Waits for all writes; returns the bytes that were copied on the way.
    ///
    /// # Errors
    ///
    /// Those of the writes.
    pub(crate) async fn finish(mut self) -> Result<u64, Failure> {
        self.flush().await?;
        while !self.writes.is_empty() {
            self.wait_for_one().await?;
        }
        self.staging.finish().await
    }
}

#[cfg(test)]
mod tests {
    /// On the lab's kernel, with its NVMe disk.
    mod guest {
        use std::fs::{File, OpenOptions};
        use std::io::Write;
        use std::net::{TcpListener, TcpStream};
        use std::os::unix::fs::{FileExt, OpenOptionsExt};
        use std::thread;

        use clap::Parser as _;
        use handoff::{Region, RxBinding, Tally};
        use handoff_command::{Context, Stop};
        use handoff_net::address::Address;
        use rustix::fs::OFlags;

        use super::super::*;
        use crate::args::Args;
        use crate::order::Order;

        const DISK: &str = "/dev/disk/by-id/nvme-tests";
        /// The most pieces of a request.
        const IOV_MAX: usize = 1_024;
        const LEN: usize = 1 << 20;

        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }

        fn content() -> Vec<u8> {
            (0..LEN).map(|at| (at * 7 % 251) as u8).collect()
        }

        /// Like a disk whose DMA allows no gaps and that refuses pieces as it announced.
        #[test]
        fn a_disk_that_refuses_pieces_gets_copies() {
            let (copied, unit, tally, notes) = gathered(Some(1), 1_449, LEN);
            assert_eq!(copied, LEN as u64);
            assert_eq!((unit, tally.zero_copy), (ALIGNMENT as usize, LEN as u64));
            assert!(notes.iter().any(|note| note.contains("copied first")), "{notes:?}");
        }

        /// More of them than a request takes do not fill a block of the disk.
        #[test]
        fn pieces_too_small_to_fill_a_block_are_copied_and_counted() {
            const { assert!(4 * IOV_MAX <= ALIGNMENT as usize) };
            // Not a whole number of pages: the last ones go through the page cache.
            let len = 4 * IOV_MAX * 3 + 400;
            let (copied, unit, tally, notes) = gathered(None, 4, len);
            assert_eq!((copied, unit), (len as u64, 4));
            assert_eq!((tally.zero_copy, tally.copied), (len as u64 - 400, 400));
            assert_eq!(notes, [""; 0]);
        }

        /// Gathers the first `len` bytes into the disk, in pieces of this size; returns the bytes copied on the way,
        /// the final unit, what the disk took, and notes. The disk may claim to take another unit.
        fn gathered(
            claim: Option<usize>,
            piece: usize,
            len: usize,
        ) -> (u64, usize, Tally, Vec<String>) {
            let args = Line::try_parse_from(["cp", "a", "b", "--nic", "lo"]).expect("parses").args;
            let stop = Stop::on_signals().expect("handles signals");
            let context = Context { json: true, stop };
            let order = Order::new(&args, &context, Address::Pipe, Address::Pipe);
            let job = Job::new(&order).expect("a driver");
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            let buffered = options.open(DISK).expect("the guest has the disk");
            let direct = options.custom_flags(OFlags::DIRECT.bits() as i32).open(DISK);
            let direct = job.driver.file(direct.expect("opens")).expect("attaches");
            let file = Ranged::new(&job.driver, buffered, Some(direct), DISK.to_owned());
            let file = file.expect("attaches");
            assert_eq!(file.unit(), 4);
            if let Some(unit) = claim {
                file.claim_unit(unit);
            }

            let area = Region::anonymous(512 * ALIGNMENT as usize).expect("memory");
            let queue = job.driver.rx_queue(area, &RxBinding::without_device()).expect("binds");
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            let mut sender = TcpStream::connect(listener.local_addr().expect("bound"));
            let sender = thread::spawn(move || {
                sender.as_mut().map(|it| it.write_all(&content()[..len]).is_ok()).ok()
            });
            let socket = job.driver.socket(listener.accept().expect("accepts").0);
            let mut receiver = socket.expect("attaches").receive(&queue).expect("starts");
            let mut gathering = Gathering::new(&job, &file).expect("memory");
            let gathered = job.driver.block_on(async {
                let mut offset = 0;
                while offset < len as u64 {
                    let mut span = receiver.next_span().await.expect("goes on").expect("receives");
                    while !span.is_empty() {
                        let piece = span.split_to(span.len().min(piece));
                        let bytes = piece.len() as u64;
                        gathering.put(piece, offset, false).await?;
                        offset += bytes;
                    }
                }
                gathering.finish().await
            });
            assert_eq!(sender.join().expect("ends"), Some(true));
            let mut there = vec![0; len];
            File::open(DISK).and_then(|disk| disk.read_exact_at(&mut there, 0)).expect("reads");
            assert!(there == content()[..len], "what is on the disk differs");
            (gathered.expect("runs").expect("writes"), file.unit(), file.tally(), job.order.notes())
        }
    }
}
