//! Leases of the kernel's buffers: files and streams go to files and streams, and nothing reaches
//! user memory.

mod testbed;

mod guest {
    mod files;
    mod lives;
    mod routes;
    mod streams;
}
