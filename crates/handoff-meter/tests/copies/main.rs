//! Programs whose copies are known exactly, counted by the meter.
//!
//! They need a kernel that allows tracing, and root; elsewhere they skip. A processor has
//! breakpoints for one meter, so the tests take turns.

mod counting;
mod files;

mod guest {
    mod housekeeping;
    mod library;
    mod scopes;
    mod sockets;
    mod storage;
}
