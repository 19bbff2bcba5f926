//! The lab reports correctly what happens in a guest, and what keeps it from booting one.
//!
//! The tests in `native::lab` and `soak` boot guests. What is in `guest::fixture` is no test of its own but
//! the subject of theirs: this same program, run in a guest or as another process, where it fails
//! on purpose.

mod guest {
    mod fixture;
}
#[macro_use]
mod native {
    #[macro_use]
    pub(crate) mod lab;
}
mod soak;
