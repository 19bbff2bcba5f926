//! What an existing device was made of.

use std::fs::File;

use crate::error::Error;
use crate::record::{Part, Record};
use crate::request::Map;
use crate::state::{self, Directory};
use crate::target;

/// An existing device.
#[derive(Clone, Debug)]
pub(crate) struct Existing {
    pub(crate) id: u32,
    pub(crate) map: Map,
    pub(crate) record: Record,
}

/// The device of a record and a state, if both can be true.
pub(crate) fn existing(record: Record, state: &File, id: u32) -> Result<Existing, Error> {
    let map = state::map_of(state).map_err(Error::doing(format!("the state of device {id}")))?;
    // The map and the record belong together.
    let (one_store, by_command) = (Part::have_one_store(&record.parts).into(), record.by_command);
    let is_laid = |laid: Map| {
        let (failed, recorded) = (map.failed, map.recorded);
        let laid = Map { failed, recorded, one_store, by_command, ..laid };
        // A leg that is not out has no record that says so.
        let is_sound = recorded & !failed == 0;
        (is_sound && (laid == map || laid.of_layout_0() == map)).then_some(laid)
    };
    match laid_out(&record).map(|(laid, size)| (is_laid(laid), size)) {
        Ok((Some(map), size)) if size == record.size => Ok(Existing { id, map, record }),
        _ => {
            let record = Directory::of(id).record_path();
            let damage = format!(
                "is damaged: {} and what lies beside it do not agree; remove the device and make it anew",
                record.display()
            );
            Err(Error::Damaged { id, damage })
        }
    }
}

/// The map and the size of the device of a record.
pub(crate) fn laid_out(record: &Record) -> Result<(Map, u64), Error> {
    let Record { spec, parts, .. } = record;
    if parts.len() != spec.files.len() {
        return Err(Error::invalid("not all of its files"));
    }
    target::check(spec).and_then(|()| target::lay_out(spec, &target::sizes(spec, parts)))
}
