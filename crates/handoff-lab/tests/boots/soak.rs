//! What takes minutes and the network.

use crate::native::lab::{fixture, printed};

#[test]
fn the_first_boot_is_from_an_empty_cache() {
    need_the_lab!();
    let cache = tempfile::tempdir().expect("a directory");
    let printed = printed(fixture(&[], "true").env("HANDOFF_LAB_DIR", cache.path()));
    assert!(printed.contains("booted 7.2") && printed.contains("ended"), "{printed}");
}
