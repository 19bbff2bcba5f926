//! The slot of a lease is in the ring of one thread.

fn main() {
    fn check<T: Send>() {}
    check::<handoff::Lease>();
}
