//! The exports, as a negotiation asks for them.

use handoff_nbd::server::{Export, Exports, Listed, Refused};

use crate::thread::Thread;

impl Exports for Thread {
    fn list(&self) -> Vec<Listed> {
        let listed = |disk: &std::rc::Rc<crate::disk::Disk>| {
            let export = disk.export.told();
            Listed { name: export.name, description: export.description }
        };
        self.disks.iter().map(listed).collect()
    }

    fn find(&self, name: &str) -> Result<Export, Refused> {
        let disk = self.disk(name).ok_or(Refused::Unknown)?;
        Ok(disk.export.told())
    }
}
