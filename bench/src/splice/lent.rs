//! What getbuf does: the page is lent into a slot of the ring, written from there, and given back.

use std::os::fd::AsFd as _;

use io_uring::{
    opcode,
    squeue::{Entry, Flags},
    types::Fixed,
};

use super::{
    BYTES, LOOK,
    device::{Device, get, put},
    ring::Ring,
    spliced::sink,
};
use crate::{
    calls::Enters,
    measure::{Engine, Slot, Tally},
};

const DEVICE: Fixed = Fixed(0);
const SINK: Fixed = Fixed(1);

/// How the requests of a batch, all in one submission, lend, use and give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Side by side: the kernel issues them in their order, and none of them waits.
    Bare,
    /// Each when the one before it has completed.
    Linked,
    /// As bare, with one more request that does nothing.
    Nop,
    /// The page is lent before the first and given back after the last.
    Kept,
}

impl Form {
    pub(super) const ALL: [Self; 4] = [Self::Bare, Self::Linked, Self::Nop, Self::Kept];

    pub(super) fn engine(self) -> &'static str {
        match self {
            Self::Bare => "get",
            Self::Linked => "get-linked",
            Self::Nop => "get-nop",
            Self::Kept => "get-kept",
        }
    }

    /// What one use of a slot is. Only the write answers, unless something fails.
    fn requests(self, slot: u16) -> Vec<Entry> {
        let quiet = |entry: Entry, flags: Flags| entry.flags(flags | Flags::SKIP_SUCCESS);
        let link = match self {
            Self::Linked => Flags::IO_LINK,
            _ => Flags::empty(),
        };
        let write = opcode::WriteFixed::new(SINK, std::ptr::null(), BYTES, slot).build();
        match self {
            Self::Kept => vec![write],
            _ => {
                let get = quiet(get(DEVICE, slot, BYTES), link);
                let put = quiet(put(DEVICE, slot), Flags::empty());
                let nop = quiet(opcode::Nop::new().build(), Flags::empty());
                let nop = (self == Self::Nop).then_some(nop);
                [get, write.flags(link), put].into_iter().chain(nop).collect()
            }
        }
    }
}

pub(super) struct Lent {
    /// Closes before the device, which has nothing out then.
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
        let batch: Vec<Entry> = (0..depth).flat_map(|slot| form.requests(slot)).collect();
        let ring = Ring::new(batch.len(), &[device.fd(), sink.as_fd()], depth)?;
        Ok(Self { ring, device, form, depth, batch, enters: None })
    }

    /// One quiet request for each slot.
    fn each(&mut self, request: impl Fn(u16) -> Entry) -> Result<(), String> {
        let quiet = |slot| request(slot).flags(Flags::SKIP_SUCCESS);
        let batch: Vec<Entry> = (0..self.depth).map(quiet).collect();
        self.ring.run(&batch, 0, 0)
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
                self.ring.run(&self.batch, self.depth.into(), BYTES)?;
            }
            operations += u64::from(LOOK);
        }
        if kept {
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
