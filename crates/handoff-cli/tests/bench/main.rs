//! `handoff bench`, as users call it: in the lab from here, and on the lab's kernel.

mod native {
    mod lab;
}

mod guest {
    mod peer;
    mod recv;
    mod splice;
}
