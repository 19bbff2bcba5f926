//! What takes minutes in a guest with systemd: a block device's unit, the services, disks that
//! udev hides, and modules that dkms builds.

use crate::native::lab::life::{in_guest, library, pack};

/// Packs in these versions, one after the other, and runs a script with the packages.
macro_rules! with_versions {
    ($script:literal, $versions:expr) => {
        let Some(library) = library() else {
            handoff_lab::skip!(
                "no library for C beside this test: cargo test --workspace builds it"
            );
        };
        let place = tempfile::tempdir().expect("a directory");
        for version in $versions {
            pack(place.path(), &library, version);
        }
        if let Some(reason) = in_guest("full", $script, place.path()) {
            handoff_lab::skip!("{reason}");
        }
    };
}

#[test]
fn packages_are_installed_used_and_purged_where_systemd_is() {
    with_versions!("life.sh", [None]);
}

#[test]
fn services_start_are_killed_upgraded_and_removed() {
    with_versions!("services.sh", [None, Some("99.0.0")]);
}

#[test]
fn disks_behind_a_device_are_hidden_where_udev_is() {
    with_versions!("disks.sh", [None]);
}

#[test]
fn modules_are_built_upgraded_and_removed() {
    with_versions!("modules.sh", [None, Some("99.0.0")]);
}
