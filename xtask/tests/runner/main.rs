//! The runner of tests reports correctly how a test in a guest ends.
//!
//! What is in `guest::fixture` is no test of its own but the subject of the test in `native::lab`: this same program, run
//! in a guest, where it fails on purpose.

mod guest {
    mod fixture {
        mod endings;
    }
}

mod native {
    mod lab;
}
