//! A text is a KEY or a mistake, and a KEY is read however somebody spaces it and writes its letters.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "it is the whole module of handoff-cp, which is nobody else's")]
#[path = "../../crates/handoff-cp/src/key.rs"]
mod key;

use key::{End, Key, NAME};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    match Key::parse(&text) {
        Ok(key) => assert!(Key::parse(&key.text()).is_ok_and(|again| again.name() == key.name())),
        Err(mistake) => assert!(!mistake.to_string().contains('\n')),
    }
    let Some((name, habits)) = bytes.split_first_chunk::<NAME>() else { return };
    let key = Key::new(*name).expect("random bits");
    let mut typed = String::new();
    for (at, letter) in key.text().chars().enumerate() {
        let habit = habits.get(at % habits.len().max(1)).copied().unwrap_or_default();
        match letter {
            '-' => typed.push_str(["-", "", " ", "--\t"][usize::from(habit % 4)]),
            '0' if habit & 4 != 0 => typed.push('O'),
            '1' if habit & 4 != 0 => typed.push(['i', 'L'][usize::from(habit % 2)]),
            letter if habit & 8 != 0 => typed.push(letter.to_ascii_uppercase()),
            letter => typed.push(letter),
        }
    }
    let read = Key::parse(&typed).expect("the same");
    assert!(read.text() == key.text() && read.name() == *name);
    let proof = read.proof(End::Connects, habits);
    assert!(key.proves(End::Connects, habits, &proof) && !key.proves(End::Listens, habits, &proof));
});
