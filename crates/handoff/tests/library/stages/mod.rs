//! Handles dropped, forgotten and cancelled, and futures that panic, at every stage of an operation:
//! nothing is freed early, nothing hangs, and when the driver goes, everything ends within a second.

mod drivers;
mod futures;
mod handles;
mod lanes;
mod stage;
