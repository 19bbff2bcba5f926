#![forbid(unsafe_code)]
use handoff::{Buffer, Payload, Lendable, SharedBuffer};

fn slice_over_shared_memory(shared: SharedBuffer) -> Buffer {
    Buffer::from_loan(Lendable::into_loan(shared))
}

fn through_a_bound<A: Payload, B: Lendable>(buffer: A) -> B {
    B::from_loan(buffer.into_loan())
}

fn main() {}
