//! Passing pages by getbuf: the kernel lends a page into a slot of the ring, the ring writes from it, and it
//! goes back.
//!
//! Minimum kernel: the module's, 7.2. Return signal: none; the module counts returned pages.

use std::{os::fd::AsFd as _, ptr};

use io_uring::{
    opcode,
    squeue::{Entry, Flags},
    types::Fixed,
};

use super::{
    BYTES, LOOK,
    device::{Device, get, get_anew, put},
    ring::Ring,
    spliced::sink,
};
use crate::{
    calls::Enters,
    measure::{Engine, Slot, Tally},
};

const DEVICE: Fixed = Fixed(0);
const SINK: Fixed = Fixed(1);

/// How the requests of a batch, which is one submission, lend, use and return the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One GET clears the slots that the batch before filled, and lends into all of them.
    Batch,
    /// Each write has a GET, which first clears the slot.
    Each,
    /// As [`Self::Each`], and each write is linked to its GET.
    Linked,
    /// As [`Self::Each`], and each write has one more request that does nothing.
    Nop,
    /// Each write has a GET before it and a PUT after it, which clears the slot.
    Put,
    /// The page is lent before the first batch and returned after the last.
    Kept,
}

impl Form {
    pub(super) const ALL: [Self; 6] =
        [Self::Batch, Self::Each, Self::Linked, Self::Nop, Self::Put, Self::Kept];

    pub(super) fn engine(self) -> &'static str {
        match self {
            Self::Batch => "get",
            Self::Each => "get-each",
            Self::Linked => "get-linked",
            Self::Nop => "get-nop",
            Self::Put => "get-put",
            Self::Kept => "get-kept",
        }
    }

    /// A batch that uses each of `slots` slots once. Only the writes post completions, unless a request fails.
    fn batch(self, slots: u16) -> Vec<Entry> {
        let quiet = |entry: Entry| entry.flags(Flags::SKIP_SUCCESS);
        let write = |slot| opcode::WriteFixed::new(SINK, ptr::null(), BYTES, slot).build();
        let anew = |slot| quiet(get_anew(DEVICE, slot, 1, BYTES));
        let each = (0..slots).flat_map(|slot| match self {
            Self::Batch | Self::Kept => vec![write(slot)],
            Self::Each => vec![anew(slot), write(slot)],
            Self::Linked => {
                let link = Flags::IO_LINK | Flags::SKIP_SUCCESS;
                vec![get_anew(DEVICE, slot, 1, BYTES).flags(link), write(slot)]
            }
            Self::Nop => vec![anew(slot), write(slot), quiet(opcode::Nop::new().build())],
            Self::Put => {
                vec![quiet(get(DEVICE, slot, BYTES)), write(slot), quiet(put(DEVICE, slot))]
            }
        });
        let all = (self == Self::Batch).then(|| quiet(get_anew(DEVICE, 0, slots, BYTES)));
        all.into_iter().chain(each).collect()
    }
}

pub(super) struct Lent {
    /// The ring is dropped before the device, which then has no lend out.
    ring: Ring,
    device: Device,
    form: Form,
    depth: u16,
    batch: Vec<Entry>,
    enters: Option<Enters>,
}

impl Lent {
    pub(super) fn new(form: Form, depth: u16) -> Result<Self, String> {
        let (device, sink) = (Device::open()?, sink()?);
        let batch = form.batch(depth);
        let ring = Ring::new(batch.len(), &[device.fd(), sink.as_fd()], depth)?;
        Ok(Self { ring, device, form, depth, batch, enters: None })
    }

    /// Runs one request for each slot, without completions.
    fn each(&mut self, request: impl Fn(u16) -> Entry) -> Result<(), String> {
        let quiet = |slot| request(slot).flags(Flags::SKIP_SUCCESS);
        let batch: Vec<Entry> = (0..self.depth).map(quiet).collect();
        self.ring.run(&batch, 0, 0, true)
    }
}

impl Engine for Lent {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let enters = |this: &Self| this.enters.as_ref().map(Enters::count).transpose();
        let (before, enters_before) = (self.device.counts()?, enters(self)?);
        let kept = self.form == Form::Kept;
        if kept {
            self.each(|slot| get(DEVICE, slot, BYTES))?;
        }
        let mut operations = 0;
        while !slot.is_over() {
            for _ in 0..LOOK / u32::from(self.depth) {
                self.ring.run(&self.batch, self.depth.into(), BYTES, self.form != Form::Linked)?;
            }
            operations += u64::from(LOOK);
        }
        // The last batch, or all of them, have left the page in the slots.
        if self.form != Form::Put && (kept || operations > 0) {
            self.each(|slot| put(DEVICE, slot))?;
        }
        let (after, enters) = (self.device.counts()?, enters(self)?);
        let lends = after.lent - before.lent;
        let expected = if kept { self.depth.into() } else { operations };
        if after.out > 0 || after.returned != after.lent || lends != expected {
            return Err(format!(
                "the module counts otherwise: {after:?} after {operations} requests"
            ));
        }
        Ok(Tally {
            lends: Some(lends),
            enters: enters.zip(enters_before).map(|(after, before)| after - before),
            ..super::tally(operations)
        })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.enters = Some(Enters::of([rustix::thread::gettid().as_raw_nonzero().get()])?);
        Ok(())
    }
}
