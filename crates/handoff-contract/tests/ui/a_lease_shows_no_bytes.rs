//! What the kernel lends is in no address of the process.

fn first(lease: &handoff::Lease) -> u8 {
    lease[0]
}

fn main() {}
