//! The software NIC (`kmod/wire`), on the lab's kernel.

mod bed;
mod zcrx;

mod guest {
    mod bound;
    mod checksums;
    mod fixture;
    mod packets;
    mod steering;
    mod upheaval;
}
