//! Reads the record of an existing device.

use crate::error::Error;
use crate::life::Map;
use crate::state::{Directory, Part, Record};
use crate::target;

/// An existing device.
#[derive(Clone, Debug)]
pub(crate) struct Existing {
    pub(crate) id: u32,
    pub(crate) map: Map,
    pub(crate) record: Record,
}

/// The record of a device, if it can be true.
pub(crate) fn existing(directory: &Directory, id: u32) -> Result<Existing, Error> {
    let record = directory.read().map_err(|error| {
        Error::usage(format!("what device {id} was made of is not known here: {error}"))
            .caused_by(&error)
    })?;
    let (_, map) = directory.map().map_err(Error::doing(format!("the state of device {id}")))?;
    // The map and the record belong together.
    let sizes: Vec<u64> = record.parts.iter().map(|part| part.size).collect();
    let (one_store, by_command) = (Part::have_one_store(&record.parts).into(), record.by_command);
    let laid = (sizes.len() == record.spec.files.len())
        .then_some(&record.spec)
        .ok_or_else(|| Error::usage("not all of its files"))
        .and_then(|spec| target::check(spec).and_then(|()| target::lay_out(spec, &sizes)));
    match laid {
        Ok((laid, size))
            if size == record.size
                && (Map { failed: map.failed, one_store, by_command, ..laid }) == map =>
        {
            Ok(Existing { id, map, record })
        }
        _ => Err(Error::failed(format!(
            "the state of device {id} is damaged: {} and what lies beside it do not agree; remove the \
             device and make it anew",
            directory.record_path().display()
        ))),
    }
}
