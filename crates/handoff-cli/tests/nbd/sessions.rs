//! Sessions of clients of ours: a newer turn ends the older ones.

use handoff_nbd::wire::Session;

use crate::raw::{FLUSH, Raw, negotiate};
use crate::server::{Server, directory, empty};

#[test]
fn a_newer_turn_ends_the_older_ones_on_all_threads() {
    let place = directory();
    let file = place.path().join("image");
    empty(&file, 1 << 20);
    let server = Server::start(&["--threads", "3", file.to_str().expect("UTF-8")]);
    let at = |turn| Some(Session { token: 77, turn });
    let enter = |turn| {
        let mut stream = server.connect();
        negotiate(&mut stream, "", at(turn)).map(|instance| (instance, stream))
    };
    let mut old: Vec<_> = (0..6).map(|_| enter(1).expect("is let in")).collect();
    let mut other = Raw::new(server.connect(), "");
    let (instance, _new) = enter(2).expect("is let in");
    assert!(instance.is_some() && instance == old[0].0, "the server is the same");
    for (_, stream) in &mut old {
        let ended = std::io::Read::read(stream, &mut [0]);
        assert!(!matches!(ended, Ok(1..)), "it is ended: {ended:?}");
        assert!(
            ended.is_ok()
                || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        );
    }
    let late = enter(1).expect_err("is older");
    assert!(late.contains("newer session"), "{late}");
    enter(2).expect("a second connection of the same turn");
    assert_eq!(other.ask(0, FLUSH, 0, 0), 0, "those without a session stay");
}
