//! The long forms, in guests of their own.

use super::native::lab::pressure::goes_on;

/// Three rounds, so each kind of killing comes once.
fn each_engine_goes_on_with(file_system: &str) {
    for engine in ["bpf", "user-auto", "batch-auto", "user-copy"] {
        goes_on([engine; 2], file_system, 3);
    }
}

#[test]
fn a_guest_that_is_short_of_memory_goes_on_with_ext4_and_swap_on_devices() {
    each_engine_goes_on_with("ext4");
}

#[test]
fn a_guest_that_is_short_of_memory_goes_on_with_xfs_and_swap_on_devices() {
    each_engine_goes_on_with("xfs");
}
