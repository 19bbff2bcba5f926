//! The example of rx queues on connections: a guest has a card for it.

use handoff_lab::{Error, Guest, Job, Machine, Put, StopFlag};

use super::package;
use super::programs::{UNSANITIZED, example};

#[test]
fn the_example_of_rx_queues_receives_from_a_card() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = example("zcrx", UNSANITIZED, directory.path());
    let script = package().join("tests/capi/zcrx.sh");
    let puts = [(program, "/usr/local/bin/zcrx"), (script, "/root/zcrx.sh")]
        .map(|(source, target)| Put { source, target: target.into() });
    let machine = Machine { puts: puts.into(), ..Machine::default() };
    let mut guest = match Guest::boot(&machine, &StopFlag::default()) {
        Err(Error::NotPossible(reason)) => handoff_testbed::skip!("{reason}"),
        booted => booted.expect("boots"),
    };
    let ran = guest.run_captured(&Job::new(["sh", "/root/zcrx.sh"])).expect("runs");
    let (outcome, said, errors) = ran;
    let [said, errors] = [said, errors].map(|it| String::from_utf8(it).expect("is text"));
    assert!(outcome.success(), "{outcome:?}\n{said}{errors}");
    assert_eq!(
        said,
        "zcrx -v -s 100000\n\
         connection 0 accepted, of ::ffff:10.79.0.1 port N\n\
         connection ended: received 100000, spans N\n\
         connection 0 accepted, of fd00:79::1 port N\n\
         connection ended: received 100000, spans N\n\
         connection 0 accepted, of ::ffff:10.79.0.1 port N\n\
         connection ended: received 99999, spans N\n\
         zcrx: 100000 bytes were expected\n\
         code 1\n\
         zcrx -v -c 1 -C 1\n\
         processors: one\n\
         connection 0 accepted, of ::ffff:10.79.0.1 port N\n\
         connection ended: received 200000, spans N\n\
         connection 0 accepted, of ::ffff:10.79.0.1 port N\n\
         zcrx: byte 0 is wrong\n\
         code 1\n\
         zcrx -c 2 -A 1\n\
         processors: one\n\
         connection 0 accepted, of fd00:79::1 port N\n\
         connection ended: received 70000, spans N\n\
         code 143\n",
        "{errors}"
    );
    guest.power_off().expect("ends");
}
