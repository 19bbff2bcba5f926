//! Leases of the kernel's buffers: files and streams go to files and streams, and nothing reaches
//! user memory.

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../refusals/mod.rs"]
mod refusals;
mod testbed;

mod guest {
    mod files;
    mod lives;
    mod routes;
    mod streams;
}
