//! `handoff cp` as a user meets it: the built command, real files, sockets, pipes and signals.

mod broken;
mod crowd;
mod hostile;
mod lease;
mod lend;
mod local;
mod nic;
mod peers;
mod reflink;
mod refused;
mod replaced;
mod rings;
mod session;
mod sparse;
mod tls;

mod native {
    mod crowd;
}

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../strangers/mod.rs"]
mod strangers;
#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../terminal/mod.rs"]
mod terminal;
