//! The tests of the kernel modules are programs in `tests`.
