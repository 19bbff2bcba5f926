//! A new mirror: which legs may become one, and what is written to them.
//!
//! Contract: legs whose data would be lost without a word from the user are refused, before anything is written. A
//! mirror that is cut off while it is made can be made again.

use super::bitmap::Bitmap;
use super::create::create;
use super::equal::{Leg, Progress, Watch, difference};
use super::layout::{self, Layout};
use super::leg_record::Unreadable;
use super::page::PAGE;
use super::start::{Refused, uuid};
use super::{room, signature};
use crate::Error;
use crate::device::token;

/// Writes the records of legs of these lengths, and the bits of what is to be copied from the first one.
pub(super) fn make(
    legs: &[(&Leg, u64)],
    keep_first: bool,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    let named: Vec<_> =
        legs.iter().map(|(leg, len)| (leg.path.display().to_string(), *len)).collect();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&token()?.to_le_bytes());
    id[8..].copy_from_slice(&token()?.to_le_bytes());
    // A random UUID (version 4, variant 1).
    (id[6], id[8]) = (id[6] & 0x0f | 0x40, id[8] & 0x3f | 0x80);
    let records =
        create(&named, id, token()?).map_err(|too_small| Error::unusable(too_small.to_string()))?;
    let layout = records[0].layout;
    for (place, (leg, len)) in legs.iter().enumerate() {
        let keeps = keep_first && place == 0;
        // The end of a leg is the mirror's already, whatever lies before it.
        if !follows_a_mirror(leg, *len, layout, keeps)? {
            refuse_signatures(leg, *len, layout)?;
        }
    }
    if !keep_first {
        let open: Vec<_> = legs.iter().map(|(leg, _)| *leg).collect();
        let mut progress = Progress::of(layout.size, watch);
        if let Some((other, at)) = difference(&open, layout.size, &mut progress)? {
            return Err(Error::unusable(format!(
                "{} and {} differ from byte {at} on: name the leg first whose data is to stay, and add --keep-first",
                open[0].path.display(),
                other.display()
            )));
        }
    }
    let mut bitmap = Bitmap::clear(id, layout.chunks());
    for chunk in 0..layout.chunks() {
        bitmap.put(chunk, keep_first);
    }
    let each = || legs.iter().map(|(leg, _)| *leg).zip(&records);
    // A record counts only with its bits.
    for (leg, record) in each() {
        room::write_bitmap(&leg.file, record, &bitmap, 0..layout.pages() as usize)
            .map_err(Leg::failed(&leg.path, "cannot be written"))?;
        leg.flush()?;
    }
    for (leg, record) in each() {
        room::write_record(&leg.file, record, [0, 1])
            .map_err(Leg::failed(&leg.path, "cannot be written"))?;
    }
    Ok(())
}

/// Whether a leg of a mirror goes over to this one, with its data. Refuses others, unless their mirror was cut off while
/// it was made.
fn follows_a_mirror(leg: &Leg, len: u64, layout: Layout, keeps: bool) -> Result<bool, Error> {
    let path = leg.path.display();
    let end = layout::end(len);
    let read =
        room::read_record(&leg.file, end).map_err(Leg::failed(&leg.path, "cannot be read"))?;
    let is = match read {
        Err(Unreadable::Nothing) => return Ok(false),
        Ok(copies) if copies.record.is_new() => {
            return Ok(keeps && copies.record.layout.size <= layout.size);
        }
        Ok(copies) if keeps && copies.record.is_in() => {
            let before = copies.record.layout.size;
            if before > layout.size {
                return Err(Error::unusable(format!(
                    "{path} has {before} bytes of a mirror, and this one would have {}: take larger legs",
                    layout.size
                )));
            }
            return Ok(true);
        }
        Ok(copies) => {
            format!("is leg {} of the mirror {}", copies.record.leg, uuid(&copies.record.uuid))
        }
        Err(Unreadable::Damaged) => "has the damaged record of a mirror".to_owned(),
        Err(Unreadable::Newer(version)) => {
            let path = path.to_string();
            return Err(Error::unusable(Refused::Newer { path, version }.to_string()));
        }
    };
    Err(Error::unusable(format!(
        "{path} {is}: start that mirror without --create, or take this leg away from it by \
         dd if=/dev/zero of={path} bs={PAGE} seek={} count=2 conv=notrunc,fsync",
        end / PAGE - 2
    )))
}

/// Refuses a leg whose end somebody uses.
fn refuse_signatures(leg: &Leg, len: u64, layout: Layout) -> Result<(), Error> {
    let found = signature::find(&leg.file, len);
    let found = found.map_err(Leg::failed(&leg.path, "cannot be read"))?;
    let Some(refused) = found.iter().find(|it| it.size.is_none_or(|size| size > layout.size))
    else {
        return Ok(());
    };
    let (path, what, most) = (leg.path.display(), refused.what, layout.size);
    let uses = match refused.size {
        Some(size) => format!(" of {size} bytes, and the mirror has {most}"),
        None => ", which may use its last bytes, as the records do".to_owned(),
    };
    Err(Error::unusable(format!(
        "{path} has {what}{uses}: enlarge the legs, or take that away by wipefs --all {path}"
    )))
}
