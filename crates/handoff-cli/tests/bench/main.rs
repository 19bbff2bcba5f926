//! `handoff bench`, as users call it: in the lab from here, and on the lab's kernel.

mod refused;

mod native {
    mod lab;
    mod programs;
}

mod guest {
    mod meter;
    mod peer;
    mod recv;
    mod splice;
}
