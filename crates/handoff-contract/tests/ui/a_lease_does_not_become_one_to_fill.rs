#![forbid(unsafe_code)]
use handoff::{Lease, LeaseMut, Payload, PayloadMut, Lendable};

fn write_to_a_file_through_a_lease(lease: Lease) -> LeaseMut {
    Lendable::from_loan(lease.into_loan())
}

fn through_a_bound<A: Payload, B: PayloadMut>(lease: A) -> B {
    B::from_loan(A::into_loan(lease))
}

fn main() {}
