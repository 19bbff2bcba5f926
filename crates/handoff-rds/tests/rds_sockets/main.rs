//! The kernel's RDS sockets, with each other and with our own protocol, between two network namespaces
//! of the lab's kernel.

mod peers;
mod tcp;
#[path = "../timeout/mod.rs"]
mod timeout;

mod guest {
    mod completions;
    mod content;
    mod hardship;
    mod limits;
    mod protocol;
}

/// Where the kernel has no RDS, the error says what it lacks and what would help.
#[test]
fn without_the_module_the_reason_is_told() {
    use handoff_rds::{Error, kernel::Socket};
    match Socket::<Vec<u8>>::bind(([127, 0, 0, 1], 0).into()) {
        Ok(socket) => assert_ne!(socket.local_addr().port(), 0),
        Err(Error::NotPossible(reason)) => assert!(reason.contains("remedy"), "{reason}"),
        Err(other) => panic!("{other}"),
    }
}
