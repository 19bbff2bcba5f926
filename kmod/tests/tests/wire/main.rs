//! The software NIC (`kmod/wire`), on the lab's kernel.

mod testbed;
mod zcrx;

#[path = "../getbuf/failing.rs"]
mod failing;

mod guest {
    mod bound;
    mod checksums;
    mod failing;
    mod fixture;
    mod packets;
    mod steering;
    mod unreadable;
    mod upheaval;
}
