//! Buffers of the kernel lent into rings (`kmod/getbuf`), on the lab's kernel.

mod device;
mod failing;
mod resizing;

mod guest {
    mod failing;
    mod files;
    mod fresh;
    mod limits;
    mod lives;
    mod null;
    mod refused;
    mod streams;
    mod stress;
}
