//! The lab tells rightly what happens in a guest, and what keeps it from booting one.
//!
//! The tests in `lab` boot guests. Those in modules named `fixture` are this same program as the
//! subject of those tests: they fail on purpose. All are ignored by a plain `cargo test`.

mod fixture;
mod lab;
