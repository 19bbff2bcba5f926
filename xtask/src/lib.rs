//! The runner of this tree's tests, for `cargo xtask` and for its own tests.

pub mod runner;
