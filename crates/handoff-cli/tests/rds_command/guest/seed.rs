//! The load under which the proposal of zero copy for RDS saw data corrupted: 8 sockets, each with 64
//! messages of 1 MiB under way, and checked. 100 GiB by each engine in its long form.

use handoff_testbed::{Pair, load};

use crate::session::stress;

const WIRE: &str = "the lab's kernel has the module";

const LOAD: [&str; 6] = ["-q", "1M", "-t", "8", "-d", "64"];

fn arrives_as_it_was_sent(pair: &Pair, engine: &[&str]) {
    let long = std::env::var_os("HANDOFF_SOAK").is_some();
    let (seconds, bytes) = if long { (60, 100 << 30) } else { (2, 1) };
    let (mut crossed, mut copied) = (0, 0);
    while crossed < bytes {
        let [asked, _] = stress(&pair.left, &pair.right, engine, seconds, &LOAD);
        crossed += asked["bytes"].as_u64().expect("a number");
        copied += asked["sent"]["copied"].as_u64().expect("a number");
        if long {
            println!("{engine:?}: {} GiB, {} GiB of them copied", crossed >> 30, copied >> 30);
        }
    }
    // To learn what copying costs, a connection copies every other of the first messages that it sends
    // alone, and in the emulated guest one or the other finds that it costs less.
    assert!(copied <= crossed / 2, "{copied} of {crossed} bytes were copied");
}

#[test]
fn by_the_kernels_sockets() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    arrives_as_it_was_sent(&Pair::wire(9000).expect(WIRE), &["--engine", "kernel"]);
}

#[test]
fn by_our_own_engine() {
    let pair = Pair::wire(9000).expect(WIRE);
    // An earlier test in this guest may have loaded rds_tcp, which has the port in all namespaces and stays in use.
    for end in [&pair.left, &pair.right] {
        end.redirect(16_385, 17_000).expect("the lab's kernel leads packets there");
    }
    arrives_as_it_was_sent(&pair, &["--engine", "own", "--listen-port", "17000"]);
}
