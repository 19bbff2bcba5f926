//! `handoff bench`, as users call it: in the lab from here, and on the lab's kernel.

mod linux73;
mod refused;
mod rows;
mod two_hosts;

#[path = "../product/mod.rs"]
mod product;

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
