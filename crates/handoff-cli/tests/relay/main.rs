//! `handoff relay` as a user meets it: real connections, ends, resets, stalls and signals.

mod crowd;
mod ends;
mod limits;
mod payload;
mod proxy;
mod session;
mod stats;
mod unix;

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../strangers/mod.rs"]
mod strangers;
#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../terminal/mod.rs"]
mod terminal;

mod native {
    mod crowd;
}

mod guest {
    mod lent;
}
