//! `handoff bench`, as users call it: in the lab from here, and on the lab's kernel.

mod linux73;
mod refused;
mod rows;
mod two_hosts;

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../running/mod.rs"]
mod running;

mod native {
    mod lab;
    mod other_host;
    mod programs;
}

mod guest {
    mod crowd;
    mod meter;
    mod other_host;
    mod peer;
    mod recv;
    mod splice;
}
