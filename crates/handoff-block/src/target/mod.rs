//! The built-in mappings, one file each. `bpf/blk_map.h` says what they do to a request; here they check
//! their files and compute the size of the device.

use handoff_sys::ublk;

use crate::record::Part;
use crate::request::Map;
use crate::{Error, Kind, MirrorStart, Spec};

mod linear;
mod mapping;
mod mirror;
mod null;
mod one_file;
mod policy;
mod stripe;

use mapping::Target;

/// Bytes of the largest device.
pub(crate) const MOST: u64 = i64::MAX as u64 / ublk::SECTOR * ublk::SECTOR;

fn of(kind: Kind) -> &'static dyn Target {
    match kind {
        Kind::Null => &null::Null,
        Kind::Loop => &one_file::Loop,
        Kind::Linear => &linear::Linear,
        Kind::Stripe => &stripe::Stripe,
        Kind::Mirror => &mirror::Mirror,
        Kind::Policy => &policy::Policy,
    }
}

/// Checks what can be checked before a file is opened.
pub(crate) fn check(spec: &Spec) -> Result<(), Error> {
    let (name, mut takes, given) = (spec.target, of(spec.target).files(), spec.files.len());
    match &spec.record {
        Some(_) if name != Kind::Mirror => {
            return Err(Error::invalid(format!(
                "only a mirror's legs have records: {name} has none"
            )));
        }
        Some(MirrorStart::Create { .. }) if spec.read_only => {
            return Err(Error::invalid("--create writes to the legs, so it is not --read-only"));
        }
        Some(MirrorStart::Create { .. }) | None => {}
        // One may be left.
        Some(_) => takes = 1..=*takes.end(),
    }
    if spec.check && name != Kind::Mirror {
        return Err(Error::invalid(
            "--check compares the files of a mirror: other targets have none",
        ));
    }
    if !takes.contains(&given) {
        let wants = match (takes.start(), takes.end()) {
            (0, 0) => "no files".to_owned(),
            (1, 1) => "one file".to_owned(),
            (least, most) => format!("{least} to {most} files"),
        };
        return Err(Error::invalid(format!("{name} takes {wants}, not {given}")));
    }
    if (spec.target == Kind::Policy) != spec.policy.is_some() {
        return Err(Error::invalid("a policy's object (--policy) goes with the target policy"));
    }
    match spec.size {
        Some(_) if !matches!(spec.target, Kind::Null | Kind::Policy) => {
            return Err(Error::invalid(format!(
                "a size (--size) goes with the targets null and policy: {name} is as large as its files"
            )));
        }
        Some(size) if !size.is_multiple_of(spec.block_size.into()) => {
            return Err(Error::invalid(format!(
                "{size} bytes are not possible: a multiple of a block of {}",
                spec.block_size
            )));
        }
        _ => {}
    }
    if !(1..=4).contains(&spec.copies) {
        return Err(Error::invalid(format!("{} copies are not possible: 1 to 4", spec.copies)));
    }
    if ![512, 4096].contains(&spec.block_size) {
        return Err(Error::invalid(format!(
            "a block has 512 or 4096 bytes, not {}",
            spec.block_size
        )));
    }
    if !spec.chunk.is_power_of_two() || spec.chunk < u64::from(spec.block_size).max(4096) {
        return Err(Error::invalid(format!(
            "a chunk of {} bytes is not possible: it is a power of two, at least 4096",
            spec.chunk
        )));
    }
    Ok(())
}

/// The usable bytes of each of a device's files. Legs with records have a size in common, also one that is not there.
pub(crate) fn sizes(spec: &Spec, parts: &[Part]) -> Vec<u64> {
    let sizes = parts.iter().map(|part| part.size);
    match sizes.clone().max() {
        Some(size) if spec.record.is_some() => vec![size; parts.len()],
        _ => sizes.collect(),
    }
}

/// The map of a device of files with these sizes, and its length in bytes.
pub(crate) fn lay_out(spec: &Spec, sizes: &[u64]) -> Result<(Map, u64), Error> {
    let mut map = Map {
        files: sizes.len() as u32,
        copies: 1,
        chunk_shift: spec.chunk.trailing_zeros(),
        block_size: spec.block_size,
        ..Map::default()
    };
    map.size[..sizes.len()].copy_from_slice(sizes);
    let size = of(spec.target).lay_out(spec, sizes, &mut map)?;
    if size < u64::from(spec.block_size) {
        return Err(Error::invalid(format!("{} of {size} bytes is too small", spec.target)));
    }
    // The kernel's file offsets are signed numbers.
    if size > MOST {
        return Err(Error::invalid(format!(
            "{} of {size} bytes is too large: the kernel has devices of at most {MOST}",
            spec.target
        )));
    }
    Ok((map, size))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::{Ask, Extent, FILES, locate};

    const WRITE: u32 = 1;

    fn ask(position: u64, length: u32) -> Ask {
        Ask { position, length, op: WRITE, copy: 0, files: 0 }
    }

    /// Every extent of a device, in order.
    fn extents(map: &Map, size: u64, length: u32) -> Vec<(u64, Extent)> {
        let mut position = 0;
        let mut found = Vec::new();
        while position < size {
            let length = u64::from(length).min(size - position) as u32;
            let extent = locate(map, ask(position, length)).expect("a place");
            found.push((position, extent));
            position += u64::from(extent.length);
        }
        found
    }

    fn sizes() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec((1u64..40).prop_map(|blocks| blocks * 4096), 2..=FILES)
    }

    proptest! {
        #[test]
        fn no_two_bytes_have_the_same_place(
            mut sizes in sizes(),
            stripe: bool,
            chunk in 12u32..15,
            blocks in 1u32..64,
        ) {
            let target = if stripe { Kind::Stripe } else { Kind::Linear };
            let spec = Spec { target, chunk: 1 << chunk, ..Spec::default() };
            if stripe {
                // Each file has at least one chunk.
                for size in &mut sizes {
                    *size = (*size).max(spec.chunk);
                }
            }
            let (map, size) = lay_out(&spec, &sizes).unwrap();
            let mut used = vec![Vec::new(); sizes.len()];
            for (_, extent) in extents(&map, size, blocks * 512) {
                let file = extent.file as usize;
                prop_assert!(extent.offset + u64::from(extent.length) <= sizes[file]);
                used[file].push(extent.offset..extent.offset + u64::from(extent.length));
            }
            for ranges in &mut used {
                ranges.sort_by_key(|range| range.start);
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
        }

        #[test]
        fn nothing_lies_beyond_the_end(sizes in sizes(), beyond in 0u64..1 << 40) {
            for target in [Kind::Linear, Kind::Stripe, Kind::Mirror] {
                let spec = Spec { target, chunk: 4096, ..Spec::default() };
                let (map, size) = lay_out(&spec, &sizes).unwrap();
                prop_assert_eq!(locate(&map, ask(size + beyond * 512, 512)), None);
            }
        }
    }

    #[test]
    fn a_read_of_a_mirror_goes_to_legs_that_are_in() {
        let spec = Spec { target: Kind::Mirror, chunk: 4096, ..Spec::default() };
        let (mut map, size) = lay_out(&spec, &[1 << 20; 3]).unwrap();
        let legs = |map: &Map| {
            let leg = |position| locate(map, Ask { op: 0, ..ask(position, 512) }).unwrap().file;
            (0..size).step_by(4096).map(leg).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(legs(&map), [0, 1, 2].into());
        map.failed = 0b010;
        assert_eq!(legs(&map), [0, 2].into());
        map.failed = 0b111;
        assert_eq!(locate(&map, Ask { op: 0, ..ask(0, 512) }), None);
    }

    #[test]
    fn the_leg_that_a_byte_is_read_from_is_the_same_for_all_requests() {
        let spec = Spec { target: Kind::Mirror, chunk: 8192, ..Spec::default() };
        let (mut map, size) = lay_out(&spec, &[1 << 18; 3]).unwrap();
        for out in 0..0b111 {
            map.failed = out;
            // Of each block.
            let legs = |step: u32| {
                let mut legs = Vec::new();
                for start in (0..size).step_by(step as usize) {
                    let mut at = start;
                    while at < (start + u64::from(step)).min(size) {
                        let rest = (start + u64::from(step)).min(size) - at;
                        let extent = Ask { op: 0, ..ask(at, rest as u32) };
                        let extent = locate(&map, extent).expect("a leg");
                        assert_eq!(extent.offset, at);
                        let blocks = extent.length / 512;
                        legs.extend((0..blocks).map(|_| extent.file));
                        at += u64::from(extent.length);
                    }
                }
                legs
            };
            let by_block = legs(512);
            for step in [4096, 8192 + 512, 24576, 1 << 17] {
                assert!(legs(step) == by_block, "without {out:03b}, by {step} bytes");
            }
        }
        // Nothing is cut where one leg has all.
        map.failed = 0b101;
        let whole = locate(&map, Ask { op: 0, ..ask(512, 1 << 17) }).expect("a leg");
        assert_eq!((whole.file, whole.length), (1, 1 << 17));
    }

    #[test]
    fn what_makes_no_device_is_refused() {
        let of = |target, chunk, files: usize| Spec {
            target,
            chunk,
            files: vec!["x".into(); files],
            ..Spec::default()
        };
        for (spec, said) in [
            (of(Kind::Null, 4096, 1), "null takes no files, not 1"),
            (of(Kind::Loop, 4096, 2), "loop takes one file, not 2"),
            (of(Kind::Mirror, 4096, 1), "mirror takes 2 to 16 files, not 1"),
            (of(Kind::Linear, 4096, 17), "linear takes 1 to 16 files, not 17"),
            (of(Kind::Stripe, 12288, 2), "a power of two"),
            (of(Kind::Stripe, 512, 2), "a power of two, at least 4096"),
            (Spec { block_size: 1024, ..of(Kind::Loop, 4096, 1) }, "512 or 4096"),
            (Spec { size: Some(4096), ..of(Kind::Loop, 4096, 1) }, "as large as its files"),
            (Spec { size: Some(1000), ..of(Kind::Null, 4096, 0) }, "1000 bytes are not possible"),
        ] {
            let error = check(&spec).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let small = lay_out(&of(Kind::Stripe, 8192, 2), &[1 << 20, 4096]).unwrap_err();
        assert!(small.to_string().contains("less than a chunk of 8192"), "{small}");
        for size in [u64::MAX - 511, 1 << 63] {
            let large = Spec { size: Some(size), ..of(Kind::Null, 4096, 0) };
            let large = lay_out(&large, &[]).unwrap_err().to_string();
            assert!(large.contains("at most 9223372036854775296"), "{large}");
        }
    }
}
