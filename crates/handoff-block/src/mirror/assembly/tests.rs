use std::fs;
use std::os::unix::fs::FileExt as _;

use super::*;
use crate::Kind;
use crate::mirror::room::WRITES_LEFT;
use crate::record::Part;

const LEN: u64 = 2 << 20;

/// Files that are legs.
struct Legs {
    place: tempfile::TempDir,
    count: usize,
}

impl Legs {
    fn new(count: usize) -> Self {
        let legs = Self { place: tempfile::tempdir().expect("a directory"), count };
        (0..count).for_each(|leg| legs.file(leg).set_len(LEN).expect("made"));
        legs
    }

    fn path(&self, leg: usize) -> PathBuf {
        self.place.path().join(leg.to_string())
    }

    fn file(&self, leg: usize) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(self.path(leg)).expect("a file")
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        (0..self.count).map(|leg| fs::read(self.path(leg)).expect("a file")).collect()
    }

    /// Whether all legs have the data of the first.
    fn are_equal(&self) -> bool {
        let size = crate::mirror::layout::Layout::of_end(LEN).expect("room").size as usize;
        let bytes = self.bytes();
        bytes.iter().all(|leg| leg[..size] == bytes[0][..size])
    }

    fn assemble(&self, start: &MirrorStart, legs: &[usize]) -> Result<Assembly, String> {
        self.assemble_by(start, legs, &mut |_, _| true)
    }

    fn assemble_by(
        &self,
        start: &MirrorStart,
        legs: &[usize],
        watch: &mut Watch<'_>,
    ) -> Result<Assembly, String> {
        let files: Vec<_> = legs.iter().map(|leg| self.path(*leg)).collect();
        let backing = |leg: &usize| {
            let file = self.file(*leg);
            let size = file.metadata().expect("there").len();
            let size = size - size % 512;
            Ok(Backing::of_test(file.into(), Part { device: 1, inode: 1, size, ..Part::default() }))
        };
        let named = legs.iter().map(backing).collect();
        let spec =
            Spec { target: Kind::Mirror, files, record: Some(start.clone()), ..Spec::default() };
        let hints = self.place.path().join("hints");
        let (assembly, backings) =
            assemble_with(&spec, start, named, watch, &hints).map_err(|error| error.to_string())?;
        assert_eq!(backings.len(), assembly.files.len());
        Ok(assembly)
    }

    /// The same, which writes nothing because it is refused.
    #[track_caller]
    fn refused(&self, start: &MirrorStart, legs: &[usize], said: &str) {
        let before = self.bytes();
        let line = self.assemble(start, legs).expect_err("refused");
        assert!(line.contains(said), "{line}");
        assert!(self.bytes() == before, "{line}: something was written");
    }
}

const CREATE: MirrorStart = MirrorStart::Create { keep_first: false };
const COPY: MirrorStart = MirrorStart::Create { keep_first: true };
const START: MirrorStart = MirrorStart::AsRecorded;

#[test]
fn legs_that_differ_become_a_mirror_only_if_the_user_says_whose_data_stays() {
    let legs = Legs::new(2);
    legs.file(0).write_all_at(b"kept", 5000).expect("written");
    legs.refused(
        &CREATE,
        &[0, 1],
        "differ from byte 5000 on: name the leg first whose data is to stay",
    );
    let made = legs.assemble(&COPY, &[0, 1]).expect("made");
    assert_eq!(made.mirror.ends, [LEN; 2]);
    assert_eq!(&legs.bytes()[1][5000..5004], b"kept");
    let again = legs.assemble(&START, &[1, 0]).expect("starts");
    assert_eq!((&again.files, again.out.len()), (&made.files, 0));
    assert_eq!(again.mirror.uuid, made.mirror.uuid);
}

#[test]
fn a_start_that_is_cut_off_after_any_write_goes_on() {
    // Of what was there before: nothing, a mirror with dirty chunks, one without a leg.
    for (before, start, legs_named) in [
        (None, COPY, &[0, 1][..]),
        (Some(COPY), START, &[0, 1]),
        (Some(CREATE), MirrorStart::Degraded, &[0]),
    ] {
        for writes in 0.. {
            let legs = Legs::new(2);
            if before != Some(CREATE) {
                let data = vec![7; 1 << 20];
                legs.file(0).write_all_at(&data, 70_000).expect("written");
            }
            if let Some(before) = &before {
                // Cut off while it copied, if it did.
                let _ = legs.assemble_by(before, &[0, 1], &mut |_, _| *before == CREATE);
            }
            WRITES_LEFT.set(Some(writes));
            let cut = legs.assemble(&start, legs_named);
            WRITES_LEFT.set(None);
            let is_whole = cut.is_ok();
            let next = match legs.assemble(&START, legs_named) {
                // It has no record yet on all legs, or that was not demanded yet.
                Err(line) if line.contains("no record") || line.contains("--degraded") => {
                    assert!(!is_whole, "{writes}: {line}");
                    legs.assemble(&start, legs_named)
                }
                next => next,
            };
            let next = next.unwrap_or_else(|line| panic!("{start:?}, {writes}: {line}"));
            assert_eq!(next.out.len(), 2 - legs_named.len(), "{writes}");
            assert!(legs_named.len() == 1 || legs.are_equal(), "{start:?}, {writes}");
            if is_whole {
                assert!(writes >= 2, "{start:?}");
                break;
            }
        }
    }
}

#[test]
fn who_watches_ends_a_copy_and_the_next_start_goes_on() {
    let legs = Legs::new(3);
    legs.file(0).write_all_at(b"kept", 5000).expect("written");
    let stopped = legs.assemble_by(&COPY, &[0, 1, 2], &mut |_, _| false).expect_err("stopped");
    assert!(stopped.contains("asked to end"), "{stopped}");
    let next = legs.assemble(&START, &[0, 1, 2]).expect("goes on");
    assert!(next.mirror.notes[0].contains("bytes may have differed"), "{:?}", next.mirror.notes);
    assert!(legs.are_equal());
    assert!(legs.assemble(&START, &[0, 1, 2]).expect("starts").mirror.notes.is_empty());
}

#[test]
fn a_leg_that_grew_is_found_and_one_that_was_cut_off_is_told() {
    let legs = Legs::new(2);
    let made = legs.assemble(&CREATE, &[0, 1]).expect("made");
    legs.file(1).set_len(LEN + 12345).expect("longer");
    let grown = legs.assemble(&START, &[0, 1]).expect("starts");
    assert_eq!(grown.mirror.ends, made.mirror.ends);
    assert!(grown.mirror.notes[0].ends_with("1 grew: what was added is not used"), "{grown:?}");
    legs.file(1).set_len(LEN - 8192).expect("shorter");
    let bytes =
        format!("has {} bytes and had {LEN} as a leg, so its record is cut off", LEN - 8192);
    legs.refused(&START, &[0, 1], &bytes);
    // A longer disk may become a leg of another mirror.
    legs.file(1).set_len(LEN + (1 << 20)).expect("longer");
    let other = Legs::new(1);
    fs::rename(legs.path(1), other.path(1)).expect("renamed");
    other.assemble(&CREATE, &[0, 1]).expect("made");
}

#[test]
fn bad_legs_are_refused_and_nothing_is_written() {
    let legs = Legs::new(3);
    legs.refused(&START, &[0, 1], "0 has no record of a mirror: make one with --create");
    legs.assemble(&CREATE, &[0, 1]).expect("made");
    legs.refused(&CREATE, &[0, 2], "0 is leg 0 of the mirror ");
    legs.refused(&START, &[0], "leg 1 may have newer data");
    legs.refused(&START, &[0, 1, 2], "2 has no record");
    let other = Legs::new(2);
    other.assemble(&CREATE, &[0, 1]).expect("made");
    fs::copy(other.path(1), legs.path(2)).expect("copied");
    legs.refused(&START, &[0, 2], "are legs of different mirrors");
    fs::copy(legs.path(0), legs.path(2)).expect("copied");
    legs.refused(&START, &[0, 1, 2], "are both leg 0");
    // A newer version, with a good checksum.
    let end = LEN as usize;
    let mut page: [u8; 4096] = legs.bytes()[1][end - 4096..].try_into().expect("a page");
    page[8] = 2;
    let sum = crate::mirror::page::checksum(&page[..4088]).to_le_bytes();
    page[4088..].copy_from_slice(&sum);
    legs.file(1).write_all_at(&page, LEN - 4096).expect("written");
    legs.refused(&START, &[0, 1], "a newer handoff wrote the record (version 2");
    legs.refused(&CREATE, &[1, 2], "a newer handoff wrote the record (version 2");
    // Damaged in one copy, and then in both.
    page[100] ^= 1;
    legs.file(1).write_all_at(&page, LEN - 4096).expect("written");
    let started = legs.assemble(&START, &[0, 1]).expect("starts");
    assert!(started.mirror.notes[0].contains("one copy of the record"), "{started:?}");
    for copy in [1, 2] {
        legs.file(1).write_all_at(b"damage", LEN - copy * 4096 + 100).expect("written");
    }
    legs.refused(&START, &[0, 1], "leg 1 may have newer data and cannot be read");
    legs.refused(&START, &[1], "both copies of the record of");
    legs.refused(&CREATE, &[1, 2], "1 has the damaged record of a mirror");
    let degraded = legs.assemble(&MirrorStart::Degraded, &[0, 1]).expect("starts");
    assert_eq!(degraded.files[1], PathBuf::new());
    legs.refused(&MirrorStart::Trust(legs.path(1)), &[0, 1], "cannot be trusted");
    legs.refused(&MirrorStart::Trust("/else".into()), &[0, 1], "is not among the legs");
    let small = Legs::new(2);
    small.file(1).set_len(81919).expect("shorter");
    small.refused(&CREATE, &[0, 1], "1 has 81408 bytes, and a leg takes 81920 or more");
}

#[test]
fn a_file_system_that_needs_the_end_of_a_leg_is_refused_until_that_is_enlarged() {
    let legs = Legs::new(2);
    for leg in [0, 1] {
        let blocks = (LEN / 1024) as u32;
        let ext4 = [(0x438, vec![0x53, 0xef]), (0x404, blocks.to_le_bytes().to_vec())];
        for (at, bytes) in ext4 {
            legs.file(leg).write_all_at(&bytes, at).expect("written");
        }
    }
    legs.refused(
        &CREATE,
        &[0, 1],
        "an ext2, ext3 or ext4 file system of 2097152 bytes, and the mirror has",
    );
    for leg in [0, 1] {
        legs.file(leg).set_len(LEN + (76 << 10)).expect("longer");
    }
    legs.assemble(&CREATE, &[0, 1]).expect("now there is room");
    let legs = Legs::new(2);
    legs.file(1).write_all_at(b"LUKS\xba\xbe", 0).expect("written");
    legs.refused(&COPY, &[0, 1], "1 has a LUKS header, which may use its last bytes");
}

#[test]
fn a_leg_goes_over_to_a_new_mirror_with_all_that_it_has() {
    let legs = Legs::new(3);
    let made = legs.assemble(&CREATE, &[0, 1]).expect("made");
    // What tells no length lies within the mirror.
    legs.file(0).write_all_at(b"LUKS\xba\xbe", 0).expect("written");
    legs.assemble(&MirrorStart::Degraded, &[0]).expect("starts");
    legs.refused(&CREATE, &[0, 2], "0 is leg 0 of the mirror ");
    legs.refused(&COPY, &[2, 0], "0 is leg 0 of the mirror ");
    legs.file(2).set_len(LEN - 4096).expect("shorter");
    legs.refused(&COPY, &[0, 2], "bytes of a mirror, and this one would have ");
    legs.file(2).set_len(LEN).expect("longer");
    let next = legs.assemble(&COPY, &[0, 2]).expect("made");
    assert_ne!(next.mirror.uuid, made.mirror.uuid);
    assert_eq!(&legs.bytes()[2][..6], b"LUKS\xba\xbe");
    legs.refused(&START, &[0, 1], "are legs of different mirrors");
    // One that was told that it is out has older data.
    let legs = Legs::new(3);
    legs.assemble(&CREATE, &[0, 1]).expect("made");
    legs.assemble(&MirrorStart::Degraded, &[0]).expect("starts");
    legs.assemble(&START, &[0, 1]).expect("tells it");
    legs.refused(&COPY, &[1, 2], "1 is leg 1 of the mirror ");
}
