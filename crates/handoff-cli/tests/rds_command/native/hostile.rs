//! Peers that break the protocol.

use handoff_cli::cp::checksum::PieceSum;
use handoff_cli::cp::wire::{Frame, Hello};
use handoff_lab::topology::Pair;

use crate::copy::{Files, pattern, receiver};
use crate::peer::{PORT, play, sends};

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
