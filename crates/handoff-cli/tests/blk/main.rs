//! `handoff blk` on the lab's kernel, as a user meets it.
//!
//! Root and the module `ublk_drv` are needed; elsewhere the tests skip.

mod guest {
    mod command;
    mod devices;
    mod file_systems;
    mod hardship;
    mod memory;
    mod mirrors;
    mod mistakes;
    mod policies;
    mod power;
    mod processes;
    mod records;
    mod stopping;
    mod takeover;
}

mod native {
    pub(crate) mod lab {
        pub(crate) mod pressure;
    }
}

mod soak;
#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../terminal/mod.rs"]
mod terminal;
