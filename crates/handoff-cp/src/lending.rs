//! Pieces of a file lent from the page cache (get-buf) instead of read into our memory.
//!
//! Contracts:
//! - nobody looks at the bytes, so a copy with a checksum reads them instead;
//! - if the kernel does not lend, reading takes its place, and the report says so.

use std::cell::{Cell, RefCell};

use handoff::{Error, GetBuf, KernelSource, Lease, Tally};
use handoff_command::Failure;
use handoff_command::failure::Failed;

use crate::args::{EngineName, Lend};
use crate::job::Job;
use crate::report::Hop;

/// A file that lends.
pub(crate) struct Lending {
    getbuf: GetBuf,
    source: KernelSource,
    /// Or the copy fails.
    required: bool,
    lent: Cell<u64>,
    /// Why the rest is read.
    refused: RefCell<Option<String>>,
}

impl Lending {
    /// Prepares the file, if that is wanted and possible.
    ///
    /// # Errors
    ///
    /// [`Failure::NotPossible`] if it was requested and is impossible.
    pub(crate) fn open(job: &Job<'_>, file: &std::fs::File) -> Result<Option<Self>, Failure> {
        let required = match job.order.args.lend {
            Lend::Never => return Ok(None),
            // A copy past the page cache does not want it filled.
            Lend::Auto
                if job.order.args.direct || job.order.args.engine == EngineName::MsgZerocopy =>
            {
                return Ok(None);
            }
            Lend::Auto => false,
            Lend::Always => true,
        };
        let opened = job.driver.get_buf().and_then(|getbuf| {
            let source = getbuf.source(file)?;
            Ok(Self { getbuf, source, required, lent: Cell::new(0), refused: RefCell::default() })
        });
        match opened {
            Ok(lending) => Ok(Some(lending)),
            Err(error) if required => Err(error).failed("lending from the page cache"),
            Err(error) => {
                tracing::info!(%error, "the source is read: nothing lends from the page cache");
                Ok(None)
            }
        }
    }

    /// At most `len` bytes at `offset`, fewer at a limit of the module; `None` if they must be read.
    ///
    /// # Errors
    ///
    /// Errors of the file system, a file that ends early, and a refusal of what was requested.
    pub(crate) async fn get(
        &self,
        offset: u64,
        len: usize,
        name: &str,
    ) -> Result<Option<Lease>, Failure> {
        if self.refused.borrow().is_some() {
            return Ok(None);
        }
        let lent = match self.source.get_at(offset, len as u32) {
            Ok(getting) => getting.await,
            Err(error) => Err(error),
        };
        match lent {
            Ok(Some(lease)) => {
                self.lent.set(self.lent.get() + lease.len() as u64);
                Ok(Some(lease))
            }
            Ok(None) => Err(Failure::failed(format!(
                "{name} was cut while it was read: it ends at {offset}"
            ))),
            Err(error @ (Error::EngineUnavailable { .. } | Error::Memlock { .. }))
                if !self.required =>
            {
                self.refused.borrow_mut().get_or_insert_with(|| error.to_string());
                Ok(None)
            }
            Err(error) => Err(error).failed(&format!("lending from {name}")),
        }
    }

    /// What happened to lent bytes on their way to the ring; and to `read`, which was read.
    pub(crate) fn hop(&self, job: &Job<'_>, read: Tally) -> Hop {
        let lent = self.lent.get();
        let mut tally = read;
        match self.getbuf.stats() {
            Ok(stats) => {
                tally.copied += stats.copied_bytes;
                tally.zero_copy += lent.saturating_sub(stats.copied_bytes);
            }
            Err(_) => tally.unknown += lent,
        }
        let reason = match &*self.refused.borrow() {
            None => "lent from the page cache".to_owned(),
            Some(reason) => format!("the rest was read: {reason}"),
        };
        Hop { from: job.source_kind(), to: "ring", engine: "get-buf".to_owned(), reason, tally }
    }
}
