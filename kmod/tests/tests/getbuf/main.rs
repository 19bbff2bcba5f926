//! Buffers of the kernel lent into rings (`kmod/getbuf`), on the lab's kernel.

mod coverage;
mod device;
mod failing;
mod numbers;
mod resizing;

mod guest {
    mod charges;
    mod failing;
    mod files;
    mod fresh;
    mod fuzz;
    mod lifetimes;
    mod limits;
    mod null;
    mod refused;
    mod streams;
    mod stress;
}
