//! What takes minutes and the network.

use handoff_lab::{Machine, Userland};

use crate::native::lab::{boot, fixture, printed, shell};

#[test]
fn the_first_boot_is_from_an_empty_cache() {
    need_the_lab!();
    let cache = tempfile::tempdir().expect("a directory");
    let printed = printed(fixture(&[], "true").env("HANDOFF_LAB_DIR", cache.path()));
    assert!(printed.contains("booted 7.2") && printed.contains("ended"), "{printed}");
}

#[test]
fn a_guest_with_systemd_keeps_its_services_and_nothing_else() {
    need_the_lab!();
    let mut guest = boot(&Machine { userland: Userland::Full, ..Machine::default() });
    let started = "[ $(systemctl is-system-running) = running ] && systemd-run --quiet --property Type=exec sleep 1001 && \
                   (setsid sleep 1002 >/dev/null 2>&1 &)";
    let (outcome, ..) = shell(&mut guest, started);
    assert!(outcome.success(), "{outcome:?}");
    let (outcome, output, _) =
        shell(&mut guest, "pgrep --list-full sleep; type handoff dkms apt-get");
    let output = String::from_utf8_lossy(&output);
    assert!(output.contains("sleep 1001") && !output.contains("sleep 1002"), "{output}");
    assert!(output.contains("dkms is") && output.contains("apt-get is"), "{output}");
    // It has nothing of ours.
    assert!(!outcome.success() && !output.contains("handoff is"), "{output}");
    assert!(guest.power_off().expect("switches off").is_none());
}
