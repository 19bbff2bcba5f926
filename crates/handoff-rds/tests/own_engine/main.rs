//! Our own engine, with its like between two network namespaces and with the kernel's sockets.

mod hosts;
mod peer;
#[path = "../timeout/mod.rs"]
mod timeout;

mod native {
    mod claim;
    mod hardship;
    mod reconnect;
    mod slow;
    mod talk;
}

mod guest {
    mod congestion;
    mod kernel;
}
