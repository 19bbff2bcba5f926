//! Buffers of the kernel, lent into the ring by the module `getbuf`: peers get the file's bytes, and all
//! buffers are back when nobody has them.

use std::ops::Range;
use std::time::Instant;

use handoff::{Driver, Error, GetBuf, KernelSource, Lease, Wait};

use crate::alarm::guarded;
use crate::end::Patience;
use crate::handles::Handle;
use crate::model::{Place, content};
use crate::transfers::{Files, KNOWN, known};
use crate::world::{To, World};

/// A lease of a file, and its offset.
pub(crate) struct Lends {
    getbuf: GetBuf,
    source: KernelSource,
    asked: Vec<Range<usize>>,
    here: Vec<(Lease, Range<usize>)>,
}

impl Lends {
    pub(crate) fn new(driver: &Driver, files: &Files) -> Self {
        let getbuf = driver.get_buf().expect("the module is loaded");
        let source = getbuf.source(&files.same).expect("lends from it");
        Self { getbuf, source, asked: Vec::new(), here: Vec::new() }
    }

    fn take(&mut self, number: usize) -> Option<(Lease, Range<usize>)> {
        (!self.here.is_empty()).then(|| self.here.swap_remove(number % self.here.len()))
    }

    /// Drops the leases here, and waits until none is out.
    pub(crate) fn end(self, driver: &Driver) {
        drop(self.here);
        let mut patience = Patience::new();
        loop {
            let begun = Instant::now();
            guarded(|| driver.turn(Wait::No).expect("turns"));
            let stats = self.getbuf.stats().expect("answers");
            if (stats.out, stats.lent) == (0, stats.returned) {
                return;
            }
            assert!(!patience.is_over(begun), "not all is back: {stats:?}");
        }
    }
}

impl World {
    pub(crate) fn lend(&mut self, at: usize, len: usize) {
        let Some(lends) = &mut self.lends else { return };
        let range = at..(at + len).min(KNOWN);
        match lends.source.get_at(at as u64, range.len() as u32) {
            Ok(getting) => {
                self.handles.push(Handle::lend(getting, lends.asked.len()));
                lends.asked.push(range);
            }
            // No room for another operation, or in the table of registered buffers.
            Err(Error::Busy { .. } | Error::EngineUnavailable { .. }) => {}
            Err(Error::DriverGone) if self.is_gone() => {}
            Err(error) => panic!("asking for a lend: {error}"),
        }
    }

    pub(crate) fn lent(&mut self, about: usize, result: Result<Option<Lease>, Error>) {
        let gone = self.is_gone();
        let lends = self.lends.as_mut().expect("a lend was asked for");
        let Range { start, end } = lends.asked[about];
        match result {
            Ok(Some(lease)) => {
                assert!(
                    !lease.is_empty() && start + lease.len() <= end,
                    "{lease:?} of {start}..{end}"
                );
                let range = start..start + lease.len();
                lends.here.push((lease, range));
            }
            Err(Error::DriverGone | Error::Canceled { .. }) if gone => {}
            other => panic!("a lend ends with {other:?}"),
        }
    }

    pub(crate) fn send_lease(&mut self, to: usize, whole: bool) {
        let Some((lease, range)) = self.lends.as_mut().and_then(|it| it.take(to)) else { return };
        let header = content(self.messages.len() + 1, 4);
        let bytes = [&header, &known()[range.clone()]].concat();
        let kept = (!whole).then(|| (lease.part(..), range));
        self.lends.as_mut().expect("it is there").here.extend(kept);
        self.accept(To::Stream(to % 2), lease, bytes, 4, Vec::<Place>::new(), true);
    }

    pub(crate) fn part_of_lease(&mut self, number: usize) {
        let Some(lends) = &mut self.lends else { return };
        let Some((lease, range)) = lends.take(number) else { return };
        let cut = lease.len() / 3;
        if cut > 0 {
            lends.here.push((lease.part(..cut), range.start..range.start + cut));
        }
        lends.here.push((lease.part(cut..), range.start + cut..range.end));
    }

    pub(crate) fn drop_lease(&mut self, number: usize, forget: bool) {
        let Some((lease, _)) = self.lends.as_mut().and_then(|it| it.take(number)) else { return };
        if forget {
            self.forgotten.push(Box::new(lease));
        } else {
            guarded(|| drop(lease));
        }
    }
}
