//! A process that prepares an interface, and is killed.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use handoff_nic::{Directory, Prepared};

use super::card::{Card, plan};

/// A process that is about to prepare one.
pub(super) fn preparing(card: &Card) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("our path"));
    command.args(["--exact", "--ignored", "--nocapture", "guest::fixture::prepares_and_stays"]);
    command.env("DEVICE", card.name()).env("PLACE", card.place.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = card.pair.right.namespace().attach(&mut command).spawn().expect("starts");
    wait_for(&mut child, "BEGINS");
    child
}

/// One that has.
pub(super) fn prepared(card: &Card) -> Child {
    let mut child = preparing(card);
    wait_for(&mut child, "PREPARED");
    child
}

fn wait_for(child: &mut Child, word: &str) {
    let output = child.stdout.as_mut().expect("piped");
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.contains(word) {
        assert_eq!(output.read(&mut byte).expect("reads"), 1, "ended after: {text}");
        text.push(byte[0] as char);
    }
}

#[test]
#[ignore = "fixture: is killed by another test"]
fn prepares_and_stays() {
    let [device, place] = ["DEVICE", "PLACE"].map(|name| std::env::var(name).expect("given"));
    println!("BEGINS");
    let prepared = Prepared::new(&device, &plan(1), &Directory::at(place)).expect("is fit");
    println!("PREPARED");
    // Until its starter is gone too.
    let _ = std::io::stdin().read(&mut [0]);
    drop(prepared);
}
