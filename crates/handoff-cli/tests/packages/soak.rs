//! The services under systemd, in a container that it boots.

use std::process::Command;

use crate::native::lab::life::{done, library, pack};

#[test]
fn services_start_by_their_sockets_and_end_well() {
    if Command::new("systemd-nspawn").arg("--version").output().is_err() {
        handoff_lab::skip!("no systemd-nspawn: apt-get install systemd-container");
    }
    let Some(library) = library() else {
        handoff_lab::skip!("no library for C beside this test: cargo test --workspace builds it");
    };
    let place = tempfile::tempdir().expect("a directory");
    let packages = pack(place.path(), &library);
    // The container's traces in /run are to be seen by nobody.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", "mount -t tmpfs tmpfs /run; exec \"$@\"", "sh", "sh"]);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/packages/systemd.sh"));
    command.arg(place.path().join("root")).args([&packages[1], &packages[3]]);
    let said = done(&mut command);
    assert!(said.ends_with("ended well\n"), "{said}");
}
