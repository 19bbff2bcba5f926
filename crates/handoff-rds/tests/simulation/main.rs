//! The protocol between simulated hosts, in virtual time, from a seed that repeats a run exactly.
//!
//! Connections are delayed, cut in the middle of frames, seen as dead by their two ends at different
//! times; hosts restart; receivers are slow; maps of hosts that speak as kernels do are read behind newer
//! ones. Then the faults stop, and everything must be settled:
//! nothing lost, doubled or out of order beyond what [`handoff_rds::protocol`] promises, every payload
//! back exactly once, memory within the limits all the time.
//!
//! `RDS_SEED=N cargo test -p handoff-rds --test simulation one_seed -- --nocapture` repeats a run.

mod applications;
mod connections;
mod ledger;
mod network;
mod world;

use world::World;

/// Runs `count` seeds; one that fails is named.
fn run(first: u64, count: u64) -> world::Seen {
    let mut seen = world::Seen::default();
    for seed in first..first + count {
        let outcome = std::panic::catch_unwind(|| World::new(seed).run());
        match outcome {
            Ok(run) => seen += run,
            Err(panic) => {
                println!("seed {seed} fails: repeat it with RDS_SEED={seed} and the test one_seed");
                std::panic::resume_unwind(panic);
            }
        }
    }
    seen
}

/// A simulation in which nothing goes wrong would show nothing.
fn assert_telling(seen: &world::Seen, runs: u64) {
    println!("{seen:?} in {runs} runs");
    for happened in [
        seen.delivered / 20,
        seen.cuts / 2,
        seen.restarts,
        seen.retransmitted,
        seen.duplicates,
        seen.congested,
        seen.pauses,
        seen.lost_to_restarts,
        seen.outdated,
        seen.renewals * 20,
    ] {
        assert!(happened * 4 > runs, "too little happens: {seen:?} in {runs} runs");
    }
}

#[test]
fn nothing_is_lost_doubled_or_out_of_order() {
    assert_telling(&run(0, 1000), 1000);
}

mod fixture {
    #[test]
    fn one_seed() {
        // The first, where nobody asks for another.
        let seed = std::env::var("RDS_SEED").map_or(0, |seed| seed.parse().expect("a number"));
        println!("{:?}", super::World::new(seed).run());
    }
}

mod soak {
    #[test]
    fn hundred_thousand_seeds() {
        super::assert_telling(&super::run(1_000_000, 100_000), 100_000);
    }
}
