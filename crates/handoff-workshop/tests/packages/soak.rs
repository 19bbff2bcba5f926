//! What takes minutes in a guest with systemd: a block device's unit, the services, disks that
//! udev hides, and modules that dkms builds.

use std::fs::File;

use crate::native::lab::lifecycle::{in_guest, library, pack, run_in_guest};

/// Packs in these versions, one after the other, and runs a script with the packages.
macro_rules! with_versions {
    ($script:literal, $versions:expr) => {
        let Some(library) = library() else {
            handoff_testbed::skip!(
                "no library for C beside this test: cargo test --workspace builds it"
            );
        };
        let place = tempfile::tempdir().expect("a directory");
        for version in $versions {
            pack(place.path(), &library, version);
        }
        if let Some(reason) = in_guest("full", $script, place.path()) {
            handoff_testbed::skip!("{reason}");
        }
    };
}

#[test]
fn packages_are_installed_used_and_purged_where_systemd_is() {
    with_versions!("lifecycle.sh", [None]);
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

/// Three guests, one after the other, with the same disks: one restarts, one switches itself off.
#[test]
fn file_systems_on_block_devices_outlive_the_machine() {
    let Some(library) = library() else {
        handoff_testbed::skip!(
            "no library for C beside this test: cargo test --workspace builds it"
        );
    };
    let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
    pack(place.path(), &library, None);
    let disks = ["data", "images"].map(|name| {
        let path = place.path().join(name);
        File::create(&path).and_then(|disk| disk.set_len(256 << 20)).expect("a disk");
        format!("{name}={}", path.display())
    });
    for (phase, last) in [("begin", "reboot\n"), ("again", "poweroff\n"), ("end", "whole\n")] {
        let output = run_in_guest("full", "reboot.sh", &[phase], place.path(), &disks);
        let [text, errors] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        if output.status.code() == Some(3) {
            handoff_testbed::skip!("{errors}");
        }
        println!("{text}");
        assert!(text.ends_with(last), "{phase}: {text}\n{errors}");
        // A guest that goes by itself is no failure here.
        let went = errors.contains("the guest died") && !errors.contains("the kernel reported");
        assert!(output.status.success() || went && phase != "end", "{phase}: {text}\n{errors}");
    }
}
