//! `handoff rds` as a user meets it, between two network namespaces.

mod copy;
mod gate;
mod hosts;
mod peer;
mod session;

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../strangers/mod.rs"]
mod strangers;

mod native {
    mod copied;
    mod crowd;
    mod hostile;
    mod own;
}

mod guest {
    mod copied;
    mod kernel;
    mod seed;
}
