//! Zero-copy I/O on stock Linux kernels: buffers are lent and come back.

pub mod probe;
