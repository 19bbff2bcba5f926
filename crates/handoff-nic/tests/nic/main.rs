//! Interfaces prepared and put back: the software NIC (`kmod/wire`) on the lab's kernel.

#[path = "../../../../kmod/tests/tests/wire/zcrx.rs"]
mod zcrx;

mod guest {
    mod card;
    mod choosing;
    mod explained;
    mod failing;
    mod fixture;
    mod left;
    mod steering;
}
