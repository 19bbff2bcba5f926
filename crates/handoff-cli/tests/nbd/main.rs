//! `handoff nbd serve` as other people's programs, hostile clients and the system meet it.

mod blocks;
mod crowd;
mod ends;
mod guest;
mod killed;
mod programs;
mod raw;
mod refused;
mod server;
mod sessions;

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../strangers/mod.rs"]
mod strangers;
