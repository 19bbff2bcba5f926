//! The long forms, in guests of their own.

use super::native::lab::pressure::goes_on;

#[test]
fn a_guest_that_is_short_of_memory_goes_on_with_files_and_swap_on_devices() {
    for engine in ["bpf", "user-auto", "batch-auto", "user-copy"] {
        goes_on([engine; 2], "6");
    }
}
