//! Handles dropped, forgotten and cancelled, and futures that panic, at every stage of an operation:
//! nothing is freed early, nothing hangs, and when the driver goes, everything ends within a second.

#[path = "../traffic/mod.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod traffic;

mod drivers;
mod futures;
mod handles;
mod lanes;
mod stage;
