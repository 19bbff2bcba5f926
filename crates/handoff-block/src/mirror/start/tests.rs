use super::*;
use crate::mirror::leg_record::tests::record;

/// A leg named by its number, with this set, after these changes (the last one first).
fn leg(number: usize, in_use: u32, changes: &[u64]) -> Named {
    let mut record = record(number, 3);
    record.in_use = Legs(in_use);
    record.generation = changes.len() as u64;
    record.changes = [0; 32];
    record.changes[..changes.len()].copy_from_slice(changes);
    of(record)
}

fn of(record: LegRecord) -> Named {
    let end = record.end;
    let path = ["a", "b", "c"][record.leg].to_owned();
    let copies = Copies { record, best: 0, differ: false };
    Named { path, end, says: Says::Record(Box::new(copies)) }
}

fn says(path: &str, says: Says) -> Named {
    Named { path: path.to_owned(), end: 64 << 20, says }
}

fn ask() -> Ask {
    Ask { change: 99, ..Ask::default() }
}

/// The set that a start has, in each order of the legs.
fn in_use(named: &[Named], ask: Ask) -> Result<u32, Refused> {
    let first = decide(named, ask).map(|start| start.in_use.0);
    if ask.trust.is_none() {
        for turn in 1..named.len() {
            let mut turned = named.to_vec();
            turned.rotate_left(turn);
            assert_eq!(decide(&turned, ask).map(|start| start.in_use.0).ok(), first.clone().ok());
        }
    }
    first
}

fn line(named: &[Named], ask: Ask) -> String {
    let line = decide(named, ask).expect_err("refused").to_string();
    assert!(!line.contains('\n'));
    line
}

#[test]
fn all_legs_that_say_the_same_are_in() {
    let all = [leg(0, 0b111, &[1]), leg(1, 0b111, &[1]), leg(2, 0b111, &[1])];
    let start = decide(&all, ask()).expect("starts");
    assert_eq!((start.in_use, start.write), (Legs(0b111), Legs::default()));
    assert_eq!(start.legs, [Some(0), Some(1), Some(2)]);
    assert!(start.notes.is_empty(), "{:?}", start.notes);
}

#[test]
fn the_newest_record_says_who_is_out() {
    // 2 went out first, then 1.
    let all = [leg(0, 0b001, &[3, 2, 1]), leg(1, 0b011, &[2, 1]), leg(2, 0b111, &[1])];
    assert_eq!(in_use(&all, ask()), Ok(0b001));
    assert_eq!(in_use(&all[..2], ask()), Ok(0b001));
    assert_eq!(in_use(&all[..1], ask()), Ok(0b001));
    let start = decide(&all, ask()).expect("starts");
    assert_eq!(start.notes, ["legs 1, 2 of the mirror are out: the data is on leg 0 only"]);
    assert_eq!((start.write, start.tell), (Legs::default(), Legs(0b110)));
    assert_eq!(start.record.generation, 3);
}

#[test]
fn a_missing_leg_that_counts_as_in_is_not_passed_over() {
    // The case: 0 goes out, 1 goes on alone and is lost, 0 comes back.
    let back = [leg(0, 0b111, &[1]), leg(2, 0b111, &[1])];
    assert_eq!(
        line(&back, ask()),
        "leg 1 may have newer data and cannot be read: bring it back, or start without it by --degraded"
    );
    let start = decide(&back, Ask { degraded: true, ..ask() }).expect("starts");
    assert_eq!((start.in_use, start.write), (Legs(0b101), Legs(0b101)));
    assert_eq!((start.record.generation, &start.record.changes[..3]), (2, &[99, 1, 0][..]));
    // And 1 is back.
    let [zero, two] = [leg(0, 0b101, &[99, 1]), leg(2, 0b101, &[99, 1])];
    let alone = leg(1, 0b010, &[2, 1]);
    assert_eq!(
        line(&[zero.clone(), alone.clone(), two.clone()], ask()),
        "a and b were each in use without the other: keep the data of one by --trust a or --trust b"
    );
    // Without change on the others' side, 1 alone is right.
    assert_eq!(in_use(&[back[0].clone(), alone, back[1].clone()], ask()), Ok(0b010));
}

#[test]
fn what_is_trusted_stays_so() {
    let all = [leg(0, 0b101, &[99, 1]), leg(1, 0b010, &[2, 1]), leg(2, 0b101, &[99, 1])];
    for (trust, expected) in [(0, 0b101), (1, 0b010), (2, 0b101)] {
        let asked = Ask { trust: Some(trust), change: 100, ..ask() };
        let start = decide(&all, asked).expect("starts");
        assert_eq!(start.in_use.0, expected);
        assert!(start.in_use.is_within(start.write));
        let after: Vec<_> = all
            .iter()
            .map(|leg| {
                let Says::Record(copies) = &leg.says else { panic!("a record") };
                let in_use = start.in_use.has(copies.record.leg);
                let loses = start.overrule.has(copies.record.leg);
                of(match (in_use, loses) {
                    (true, _) => start.record.on(&copies.record),
                    (_, true) => start.record.told_to(&copies.record),
                    _ => copies.record.clone(),
                })
            })
            .collect();
        assert_eq!(in_use(&after, ask()), Ok(expected), "the next start asks nothing");
    }
}

#[test]
fn a_leg_that_went_out_is_used_only_if_it_is_trusted() {
    // It was told so.
    let told = |number| {
        let mut told = leg(number, 0b110, &[1]);
        let Says::Record(copies) = &mut told.says else { panic!("a record") };
        copies.record.generation = 2;
        told
    };
    let out = [told(0)];
    let expected = "all that is here went out before legs 1, 2: bring that back, or take the older data of a by \
                    --trust a";
    assert_eq!(line(&out, ask()), expected);
    assert_eq!(line(&out, Ask { degraded: true, ..ask() }), expected);
    let trusted = Ask { trust: Some(0), ..ask() };
    assert_eq!(in_use(&out, trusted), Ok(0b001));
    // The others go on meanwhile, and then neither follows the other.
    let start = decide(&out, trusted).expect("starts");
    assert_eq!(start.record.changes[..3], [99, 1, 0]);
    let alone = of(start.record);
    let others = [leg(1, 0b110, &[2, 1]), leg(2, 0b110, &[2, 1])];
    assert!(line(&[alone, others[0].clone(), others[1].clone()], ask()).contains("each in use"));
    // With the others there, they are overruled first.
    let start = decide(&[told(0), others[0].clone(), others[1].clone()], trusted).expect("starts");
    assert_eq!((start.in_use, start.overrule, start.tell), (Legs(0b001), Legs(0b110), Legs(0)));
    let Named { says: Says::Record(mut copies), .. } = told(1) else { panic!("a record") };
    copies.record.in_use = Legs(0b001);
    let expected = "each leg that is here says that it is out: keep the data of one by --trust LEG";
    assert_eq!(line(&[told(0), of(copies.record)], ask()), expected);
    // What a leg was told counts against those who know less.
    let older = [told(0), leg(2, 0b111, &[1])];
    assert!(line(&older, Ask { degraded: true, ..ask() }).contains("before leg 1"));
    assert_eq!(in_use(&[told(0), others[0].clone(), others[1].clone()], ask()), Ok(0b110));
}

#[test]
fn a_change_that_only_some_legs_have_is_completed() {
    // The power went while the records were written: 2 was to go out.
    let some = [leg(0, 0b011, &[2, 1]), leg(1, 0b111, &[1]), leg(2, 0b111, &[1])];
    let start = decide(&some, ask()).expect("starts");
    assert_eq!((start.in_use, start.write, start.record.generation), (Legs(0b011), Legs(0b010), 2));
    // 0 cannot have what 1 lacks: its record has 1 in.
    let alone = [leg(0, 0b011, &[2, 1]), leg(1, 0b010, &[3, 1])];
    assert_eq!(in_use(&alone, ask()), Ok(0b010));
}

#[test]
fn as_many_changes_as_you_like_are_followed() {
    let long: Vec<u64> = (1..=40).rev().collect();
    let newest = |from: usize| {
        let mut named = leg(0, 0b001, &long[from..from + 1]);
        let Says::Record(copies) = &mut named.says else { panic!("a record") };
        copies.record.generation = 40 - from as u64;
        copies.record.changes.iter_mut().zip(&long[from..]).for_each(|(place, it)| *place = *it);
        named
    };
    // Who has all legs in use contradicts nobody, however old.
    assert_eq!(in_use(&[newest(0), leg(1, 0b111, &[1])], ask()), Ok(0b001));
    // Beyond what is remembered, nobody guesses.
    let stale = leg(1, 0b110, &[2, 1]);
    assert!(line(&[newest(0), stale.clone()], ask()).contains("--trust"));
    assert_eq!(in_use(&[newest(7), stale], ask()), Ok(0b001));
}

#[test]
fn bad_legs_are_told_in_a_line() {
    let good = leg(0, 0b111, &[1]);
    let mut other = leg(1, 0b111, &[1]);
    let Says::Record(copies) = &mut other.says else { panic!("a record") };
    copies.record.uuid = [0xab; 16];
    let mut longer = leg(1, 0b111, &[1]);
    let Says::Record(copies) = &mut longer.says else { panic!("a record") };
    copies.record.layout.size -= 4096;
    let mut copy = good.clone();
    copy.path = "copy".to_owned();
    for (second, expected) in [
        (
            says("b", Says::Newer(3)),
            "b: a newer handoff wrote the record (version 3, and this one reads up to 1): use that one",
        ),
        (
            says("b", Says::Nothing),
            "b has no record of a mirror: make one with --create, leave this leg out, or go without records by --no-record",
        ),
        (
            says("b", Says::Shrunk(65536, 4096)),
            "b has 4096 bytes and had 65536 as a leg, so its record is cut off: enlarge it again, or leave it out",
        ),
        (
            other,
            "b and a are legs of different mirrors (abababab-abab-abab-abab-abababababab, \
             07070707-0707-0707-0707-070707070707): name the legs of one",
        ),
        (
            copy,
            "copy and a are both leg 0: one is a copy, or the same disk by another name; leave one out",
        ),
        (longer, "the records of b and a disagree about the mirror's shape: leave one of them out"),
        (
            says("b", Says::Damaged),
            "legs 1, 2 may have newer data and cannot be read: bring it back, or start without it by --degraded",
        ),
    ] {
        assert_eq!(line(&[good.clone(), second], ask()), expected);
    }
    assert_eq!(line(&[], ask()), "no leg of the mirror is named");
    let damaged = says("b", Says::Damaged);
    assert_eq!(
        line(std::slice::from_ref(&damaged), ask()),
        "both copies of the record of b are damaged, and no other leg is named: name another leg"
    );
    assert_eq!(
        line(&[good, damaged], Ask { trust: Some(1), ..ask() }),
        "b cannot be trusted, since it has no record that can be read: trust another leg"
    );
}

#[test]
fn what_is_odd_and_harmless_is_told() {
    let mut first = leg(0, 0b111, &[1]);
    first.end += 4096;
    let mut third = leg(2, 0b111, &[1]);
    let Says::Record(copies) = &mut third.says else { panic!("a record") };
    copies.differ = true;
    let start = decide(&[first, third, leg(1, 0b111, &[1])], ask()).expect("starts");
    assert_eq!(start.legs, [Some(0), Some(2), Some(1)]);
    assert_eq!(start.write, Legs(0b100), "both copies are made good");
    assert_eq!(
        start.notes,
        [
            "a grew: what was added is not used",
            "one copy of the record of c is damaged or older",
            "c is leg 2, named as leg 1",
            "b is leg 1, named as leg 2",
        ]
    );
}
