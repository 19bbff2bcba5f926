//! A crowd that takes nothing of its answers, over a cable: what is lent to it is out.

use handoff_testbed::Pair;
use handoff_testbed::running::is_long;

use crate::crowd::{
    KEPT_DESCRIPTORS, KIB_OF_A_STRANGER, KIB_OF_THE_CLIENT, LARGE, PROTOCOL, assert_answered,
};
use crate::session::Server;
use crate::session::{command, directory};
use crate::strangers::{CROWD, Crowd, Kind, Visited};

/// More than the kernel takes for a client that does not read.
const HUGE: usize = 16 << 20;

#[test]
fn a_client_is_answered_while_others_never_read() {
    let place = directory(&[("large", LARGE), ("huge", HUGE)]);
    let Pair { left, right, .. } = &Pair::new(9_000).expect("namespaces and veth");
    let listen = format!("{}:0", right.v4());
    let mut serve = command(place.path(), &["--json", "--listen", &listen, "--grace", "0.2"]);
    right.namespace().attach(&mut serve);
    let serving = Server::start_as(serve);
    let answered = || left.namespace().run(|| assert_answered(&serving)).expect("enters");
    answered();
    let visited = Visited::new(serving.pid());
    let connect = |_| left.namespace().run(|| serving.connect()).expect("enters");
    let mut crowd = Crowd::new(Kind::NeverReads, PROTOCOL, connect);
    (0..3).for_each(|_| answered());
    visited.assert_kept_memory(Kind::NeverReads, KIB_OF_A_STRANGER, KIB_OF_THE_CLIENT);
    if is_long() {
        // They are given half a minute.
        visited.gives_back_descriptors(Some(&mut crowd), KEPT_DESCRIPTORS);
        answered();
    }
    // They don't hold up its end.
    let report = serving.stop();
    assert!(report["cut_short"].as_u64() >= Some(CROWD as u64), "{report}");
}
