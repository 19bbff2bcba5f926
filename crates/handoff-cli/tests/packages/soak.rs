//! What takes minutes in a guest with systemd: the services, and modules that dkms builds.

use crate::native::lab::life::{in_guest, library, pack};

/// Packs twice, the second time as an upgrade, and runs a script with both.
macro_rules! with_an_upgrade {
    ($script:literal) => {
        let Some(library) = library() else {
            handoff_lab::skip!(
                "no library for C beside this test: cargo test --workspace builds it"
            );
        };
        let place = tempfile::tempdir().expect("a directory");
        pack(place.path(), &library, None);
        pack(place.path(), &library, Some("99.0.0"));
        if let Some(reason) = in_guest($script, place.path()) {
            handoff_lab::skip!("{reason}");
        }
    };
}

#[test]
fn services_start_are_killed_upgraded_and_removed() {
    with_an_upgrade!("services.sh");
}

#[test]
fn modules_are_built_upgraded_and_removed() {
    with_an_upgrade!("modules.sh");
}
