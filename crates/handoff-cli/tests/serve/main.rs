//! `handoff serve` as a user meets it: files and what is asked of them, limits, signals, mistakes.

mod crowd;
mod ends;
mod files;
mod guest;
mod https;
mod https_crowd;
mod logged;
mod refused;
mod service;
mod session;

mod native {
    mod crowd;
}

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../strangers/mod.rs"]
mod strangers;
