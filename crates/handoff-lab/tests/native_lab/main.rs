//! The lab tells rightly what happens in a guest, and what keeps it from booting one.
//!
//! The tests in `lab` boot guests. What is in `fixture` is no test of its own but the subject of
//! theirs: this same program, run in a guest or as another process, where it fails on purpose.

mod fixture;
mod lab;
