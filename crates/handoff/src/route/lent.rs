//! Buffers of the kernel, which a route takes from a file or a stream.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::PIECE;
use super::supply::Supply;
use crate::error::Result;
use crate::file::File;
use crate::getbuf::{GetBuf, Getting, KernelSource};
use crate::lease::Lease;
use crate::outcome::Tally;
use crate::reactor::Reactor;
use crate::socket::Socket;

/// Buffers that the kernel lends.
pub(super) struct FromKernel {
    /// For streams, of which the module copies what is in no page: a device of the route's own, which counts that.
    copies: Option<GetBuf>,
    source: KernelSource,
    /// The rest of a file; `None` for streams.
    range: Option<Range<u64>>,
    getting: Option<Getting>,
    taken: u64,
}

impl FromKernel {
    pub(super) fn of_file(driver: &Rc<Reactor>, file: &File, range: Range<u64>) -> Result<Self> {
        let source = GetBuf::open(driver)?.source(file)?;
        Ok(Self { copies: None, source, range: Some(range), getting: None, taken: 0 })
    }

    pub(super) fn of_stream(driver: &Rc<Reactor>, socket: &Socket) -> Result<Self> {
        let getbuf = GetBuf::open_apart(driver)?;
        let source = getbuf.source(socket)?;
        Ok(Self { copies: Some(getbuf), source, range: None, getting: None, taken: 0 })
    }

    fn ask(&self) -> Result<Option<Getting>> {
        match &self.range {
            None => self.source.get(PIECE as u32).map(Some),
            Some(range) if range.is_empty() => Ok(None),
            Some(range) => {
                let len = (range.end - range.start).min(PIECE as u64);
                self.source.get_at(range.start, len as u32).map(Some)
            }
        }
    }
}

impl Supply for FromKernel {
    type Piece = Lease;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Lease>>> {
        if self.getting.is_none() {
            match self.ask() {
                Ok(None) => return Poll::Ready(None),
                Ok(getting) => self.getting = getting,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let getting = self.getting.as_mut().expect("was just asked for");
        let Poll::Ready(lent) = Pin::new(getting).poll(context) else { return Poll::Pending };
        self.getting = None;
        if let Ok(Some(lease)) = &lent {
            self.taken += lease.len() as u64;
            if let Some(range) = &mut self.range {
                range.start += lease.len() as u64;
            }
        }
        Poll::Ready(lent.transpose())
    }

    fn put_back(&mut self, lease: Lease) {
        drop(lease);
    }

    fn taken(&self) -> Tally {
        let copied = self.copies.as_ref().map_or(Ok(0), |it| it.stats().map(|it| it.copied_bytes));
        match copied {
            Ok(copied) => {
                // Of a lend that came after the route had ended nothing was taken.
                let copied = copied.min(self.taken);
                Tally { zero_copy: self.taken - copied, copied, ..Tally::default() }
            }
            Err(_) => Tally { unknown: self.taken, ..Tally::default() },
        }
    }
}
