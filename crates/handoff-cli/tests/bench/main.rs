//! `handoff bench --lab`, as users call it.

mod native {
    mod lab;
}
