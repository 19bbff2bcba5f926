//! `handoff bench`, as users call it: in the lab from here, and on the lab's kernel.

mod native {
    mod block;
    mod lab;
    mod send;
}

mod guest {
    mod peer;
}
