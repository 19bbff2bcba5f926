//! Probes of the test devices that benches and the demo set up.
//!
//! Each probe makes the device in a network namespace of its own thread; the device goes when the thread
//! ends. Kernel interface: `unshare(CLONE_NEWNET)`, which needs CAP_SYS_ADMIN, and rtnetlink.

use std::io;
use std::thread;

use netlink_packet_route::link::InfoKind;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use super::answer::{Answer, Finding};
use super::kernel_module::{self, Module};
use super::memory::{holds, without_net_admin};
use super::netlink;

pub(super) fn namespace() -> Finding {
    in_namespace(|| Ok(Answer::yes()))
}

pub(super) fn veth() -> Finding {
    in_namespace(|| made(netlink::make_link("probe0", InfoKind::Veth), "veth", "CONFIG_VETH"))
}

pub(super) fn dummy() -> Finding {
    in_namespace(|| known_or_made(InfoKind::Dummy, "dummy", "CONFIG_DUMMY"))
}

pub(super) fn ifb() -> Finding {
    in_namespace(|| known_or_made(InfoKind::Ifb, "ifb", "CONFIG_IFB"))
}

/// For modules that make devices in the machine's own namespace when they are loaded: those are not loaded.
fn known_or_made(kind: InfoKind, module: &str, config: &str) -> Finding {
    let is_permitted =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    match kernel_module::look(module, &format!("rtnl-link-{module}")) {
        Module::Installed if is_permitted() => {
            Ok(Answer::yes().detail(format!("module {module} is loaded when it is needed")))
        }
        Module::Installed => made(Err(Errno::PERM.into()), module, config),
        _ => made(netlink::make_link("probe0", kind), module, config),
    }
}

/// Whether the kernel lends queues of a card to netkit devices. It checks the device before the card, which does not
/// exist.
pub(super) fn queue_leases() -> Finding {
    if !holds(CapabilitySet::NET_ADMIN) {
        return Err(without_net_admin("leasing a queue"));
    }
    in_namespace(|| {
        made(netlink::make_link("probe0", InfoKind::Netkit), "netkit", "CONFIG_NETKIT")?;
        // The kernel names the far end, in a namespace that has no other device.
        match netlink::lease_from_nobody("nk0").map_err(|error| error.raw_os_error()) {
            Err(Some(libc::ENODEV)) => {
                Ok(Answer::yes().detail("to a network namespace: handoff nic lease"))
            }
            Err(Some(libc::EOPNOTSUPP)) => {
                Err(Answer::no("the kernel leases no queues to netkit devices"))
            }
            Err(Some(code)) => {
                let error = io::Error::from_raw_os_error(code);
                Err(Answer::unknown(format!("asking for a leased queue fails: {error}")))
            }
            _ => Err(Answer::unknown("the kernel leased a queue of a card that does not exist")),
        }
    })
}

fn in_namespace(ask: fn() -> Finding) -> Finding {
    let inside = move || {
        // SAFETY: only this thread, which ends with the probe, gets another network namespace; it
        // shares no socket with others.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| match error {
            Errno::PERM => {
                Answer::no("making a network namespace needs CAP_SYS_ADMIN").remedy("run as root")
            }
            Errno::INVAL => Answer::no("the kernel has no network namespaces")
                .remedy("a kernel with CONFIG_NET_NS"),
            error => Answer::unknown(format!("making a network namespace fails: {error}")),
        })?;
        ask()
    };
    thread::spawn(inside).join().unwrap_or_else(|_| Err(Answer::unknown("the probe panicked")))
}

fn made(outcome: io::Result<()>, module: &str, config: &str) -> Finding {
    let Err(error) = outcome else { return Ok(Answer::yes()) };
    Err(match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            let standing = kernel_module::look(module, &format!("rtnl-link-{module}"));
            kernel_module::missing(module, &standing, config)
        }
        Some(libc::EPERM) => {
            Answer::no("making a device needs CAP_NET_ADMIN").remedy("run as root")
        }
        _ => Answer::unknown(format!("making a {module} device fails: {error}")),
    })
}
