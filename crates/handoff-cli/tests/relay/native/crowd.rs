//! A crowd that takes nothing, over a cable: what is lent to it is out.

use handoff_testbed::Pair;
use handoff_testbed::running::is_long;
use rustix::process::Signal;

use crate::crowd::{KEPT_DESCRIPTORS, PROTOCOL};
use crate::session::Relay;
use crate::session::{command, echo_at, there_and_back};
use crate::strangers::{CROWD, Crowd, Kind, Visited, despite_idle};

#[test]
fn a_peer_is_served_while_others_never_read() {
    // Splices are told by nobody; what lies in memory is lent.
    let engines: &[&str] = if is_long() { &["memory", "auto"] } else { &["memory"] };
    for &engine in engines {
        let Pair { left, right, .. } = &Pair::new(9_000).expect("namespaces and veth");
        let target = left.namespace().run(|| echo_at(left.v4())).expect("enters");
        let listen = format!("{}:0", right.v4());
        let mut relay = command(&listen, target, &["--engine", engine, "--idle", "1"]);
        right.namespace().attach(&mut relay);
        let relay = Relay::start_as(relay);
        let connect = || left.namespace().run(|| relay.connect()).expect("enters");
        let is_served = || despite_idle(|| there_and_back(connect(), 0, 100_000));
        is_served();
        let visited = Visited::new(relay.pid());
        let mut crowd = Crowd::new(Kind::NeverReads, PROTOCOL, |_| connect());
        // While they are there, while they are ended, and afterwards.
        (0..3).for_each(|_| is_served());
        visited.gives_back_descriptors(Some(&mut crowd), KEPT_DESCRIPTORS);
        is_served();
        relay.signal(Signal::TERM);
        let ended = relay.end();
        let failed = ended.json()["failed"].as_u64().expect("a number");
        assert!(failed >= CROWD as u64, "{engine}: {ended:?}");
    }
}
