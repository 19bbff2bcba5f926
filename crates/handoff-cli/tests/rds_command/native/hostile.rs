//! Peers that break the protocol, or keep it and go no further.

use handoff_cp::checksum::PieceSum;
use handoff_cp::wire::{Frame, Hello};
use handoff_testbed::Pair;

use crate::copy::{Files, pattern, receiver, sender};
use crate::peer::{PORT, play, sends};

const IDLE: [&str; 4] = ["--rds", "own", "--idle", "0.5"];

#[test]
fn a_sender_that_only_says_hello_is_given_up_on() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let receiver = receiver(&pair.right, &files.copy(), &IDLE);
    let to = (pair.right.v4(), PORT).into();
    let sender =
        play(&pair.left, pair.left.v4(), async move |peer| peer.only_greets(to, &sends(100)).await);
    let received = receiver.end();
    assert_eq!(received.code, Some(1), "{received:?}");
    assert!(received.stderr.contains("nothing moved for too long (--idle)"), "{received:?}");
    let told = sender.join().expect("is told");
    let Frame::Answer { outcome: Err(reason), .. } = &told else { panic!("{told:?}") };
    assert!(reason.contains("--idle"), "{told:?}");
    assert_eq!(files.names(), ["source"]);
}

#[test]
fn a_receiver_that_only_says_hello_is_given_up_on() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    // More than goes unconfirmed.
    let files = Files::new(5_000_000);
    let receiver = play(&pair.right, pair.right.v4(), async |peer| {
        let (from, theirs) = peer.greeted().await;
        peer.only_greets(from, &Hello { sends: false, length: None, ..theirs }).await
    });
    let sent = sender(&pair.left, &files.source(), &pair.right, &IDLE).end();
    assert_eq!(sent.code, Some(1), "{sent:?}");
    assert!(sent.stderr.contains("nothing moved for too long (--idle)"), "{sent:?}");
    let told = receiver.join().expect("is told");
    let Frame::Abort { reason } = &told else { panic!("{told:?}") };
    assert!(reason.contains("--idle"), "{told:?}");
}

#[test]
fn a_sender_does_not_say_how_much_was_taken() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100_000);
    let receiver = receiver(&pair.right, &files.copy(), &["--rds", "own"]);
    let to = (pair.right.v4(), PORT).into();
    let sender = play(&pair.left, pair.left.v4(), async move |peer| {
        let (bytes, hello) = (pattern(100_000), sends(100_000));
        peer.say(to, &hello.encode()).await;
        peer.greeted().await;
        let as_receiver = Hello { sends: false, length: Some(1 << 40), ..hello };
        peer.say(to, &as_receiver.encode()).await;
        // Pieces that are not messages by themselves, and a message with the end of one and the next.
        let [first, second] = [0, 50_000]
            .map(|at| [&Frame::data(at, 50_000)[..], &bytes[at as usize..][..50_000]].concat());
        let frames = [first, second].concat();
        let (begin, rest) = frames.split_at(30_000);
        peer.say(to, begin).await;
        peer.say(to, rest).await;
        while peer.greeted().await.1.length != Some(frames.len() as u64) {}
        let mut sum = PieceSum::new(true);
        sum.update(&bytes);
        let end = Frame::End { bytes: 100_000, checksum: Some(sum.finish()) };
        peer.say(to, &end.encode()).await;
        peer.ending().await
    });
    let received = receiver.end().report();
    assert_eq!(received["bytes"], 100_000, "{received}");
    let told = sender.join().expect("is told");
    assert!(matches!(told, Frame::Answer { bytes: 100_000, outcome: Ok(_) }), "{told:?}");
    assert!(std::fs::read(files.copy()).expect("is there") == pattern(100_000));
}
