//! What all connections of a thread share.

use std::rc::Rc;
use std::sync::Arc;

use handoff::{Driver, Result};

use crate::disk::Disk;
use crate::export::Export;
use crate::limits::Limits;
use crate::memory::Memory;
use crate::served::Counters;
use crate::sessions::Sessions;

pub(crate) struct Thread {
    pub(crate) driver: Driver,
    pub(crate) disks: Vec<Rc<Disk>>,
    pub(crate) memory: Memory,
    pub(crate) limits: Limits,
    pub(crate) sessions: Sessions,
    pub(crate) counters: Rc<Counters>,
    pub(crate) notes: Vec<String>,
}

impl Thread {
    /// # Errors
    ///
    /// When there is neither memory nor descriptors for it.
    pub(crate) fn new(
        driver: &Driver,
        exports: &[Arc<Export>],
        sessions: &Sessions,
        limits: Limits,
    ) -> Result<Self> {
        let mut notes = Vec::new();
        let counters = Rc::<Counters>::default();
        let memory = Memory::new(driver, limits.memory)?;
        notes.extend(memory.note.clone());
        let attach = |export| Disk::new(driver, export, &counters, &mut notes).map(Rc::new);
        let disks = exports.iter().map(attach).collect::<Result<_>>()?;
        notes.dedup();
        let (driver, sessions) = (driver.clone(), sessions.clone());
        Ok(Self { driver, disks, memory, limits, sessions, counters, notes })
    }

    /// The export of a name. The first is the default one, unless another has no name.
    pub(crate) fn disk(&self, name: &str) -> Option<&Rc<Disk>> {
        let named = self.disks.iter().find(|disk| disk.export.name() == name);
        named.or_else(|| self.disks.first().filter(|_| name.is_empty()))
    }
}
