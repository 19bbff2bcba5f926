//! Pairs of virtio-net devices that QEMU has joined, lent to namespaces.
//!
//! A guest of the lab has them if they were asked for (`Machine::virtio_net`), in the network namespace
//! that it boots into.
//!
//! Contracts:
//!
//! 1. A device is taken by moving it, which the kernel does once: two users that look for a pair at the
//!    same time never share one.
//! 2. It comes back, with its old name and settings, when the [`Moved`] is dropped. After kill -9 the
//!    kernel brings it back, with the settings that it had.
//!
//! Capability: CAP_NET_ADMIN over both namespaces. The driver virtio_net is loaded if it is not there.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use handoff_sys::netlink::Netlink;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};

use super::{Namespace, Side, namespace::this_threads_namespace, rtnetlink::Rtnetlink};
use crate::driver::load;
use crate::error::TopologyError;
use crate::error::asked;

/// Virtio's number for a network device.
const NETWORK_DEVICE: &str = "0x0001";
const DEVICES: &str = "/sys/bus/virtio/devices";

/// The hardware address of a pair's end: locally administered, and used by nobody else.
pub fn mac(pair: u8, side: Side) -> [u8; 6] {
    [0x02, 0, 0, 0x79, pair, side.number()]
}

/// A device that is away from its namespace.
#[derive(Debug)]
pub(super) struct Moved {
    to: Namespace,
    name: &'static str,
    home: File,
    found: Found,
}

/// A device and its original settings.
#[derive(Debug)]
struct Found {
    name: String,
    mtu: u32,
    /// Whether NAPI has threads of its own, as the kernel writes it; `None` if the kernel has no such
    /// switch.
    threaded: Option<String>,
}

/// Moves an unused pair out of the calling thread's namespace, each end under this name; returns their
/// hardware addresses.
///
/// # Errors
///
/// [`TopologyError::Unavailable`] if there is none.
pub(super) fn take(
    to: [(&Namespace, Side); 2],
    name: &'static str,
) -> Result<[(Moved, [u8; 6]); 2], TopologyError> {
    if any_without_driver() {
        load("virtio_net", &[])?;
    }
    let links = links()?;
    for pair in 0..=u8::MAX {
        let macs = to.map(|(_, side)| mac(pair, side));
        let [Some(first), Some(second)] = macs.map(|mac| found(&links, mac)) else { continue };
        let home = || this_threads_namespace().map_err(asked("open the thread's own namespace"));
        // The holder of the first device has the second too.
        let Some(first) = Moved::out_of(home()?, first, to[0].0, name)? else { continue };
        let Some(second) = Moved::out_of(home()?, second, to[1].0, name)? else { continue };
        return Ok([(first, macs[0]), (second, macs[1])]);
    }
    Err(TopologyError::Unavailable {
        what: "a pair of virtio-net devices".to_owned(),
        reason: "this machine has none that is free; the lab's guest gets them by --virtio-net"
            .to_owned(),
    })
}

impl Moved {
    /// `None` if it is gone.
    fn out_of(
        home: File,
        found: Found,
        to: &Namespace,
        name: &'static str,
    ) -> Result<Option<Self>, TopologyError> {
        match move_away(&found.name, to.as_fd().as_raw_fd()) {
            Err(TopologyError::Kernel { source, .. })
                if source.raw_os_error() == Some(libc::ENODEV) =>
            {
                return Ok(None);
            }
            moved => moved?,
        }
        let moved = Self { to: to.clone(), name, home, found };
        moved.to.run(|| rename(&moved.found.name, name))??;
        Ok(Some(moved))
    }

    fn put_back(&self) -> Result<(), TopologyError> {
        let Found { name, mtu, threaded } = &self.found;
        self.to.run(|| {
            let mut kernel = Rtnetlink::open()?;
            kernel.change(self.name, vec![LinkAttribute::Mtu(*mtu)])?;
            rename(self.name, name)?;
            move_away(name, self.home.as_raw_fd())
        })??;
        let switch = threaded_switch(name);
        let now = fs::read_to_string(&switch).ok();
        let Some(threaded) = threaded.as_ref().filter(|_| now != *threaded) else { return Ok(()) };
        // Linux 7.2 hangs when threads of a device that is down are to end.
        Rtnetlink::open()?.set_up(name)?;
        let written = fs::write(&switch, threaded);
        Rtnetlink::open()?.change(name, Vec::new())?;
        written.map_err(asked(format!("write {}", switch.display())))
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        if let Err(error) = self.put_back() {
            tracing::warn!(%error, "{} is not put back as it was found", self.found.name);
        }
    }
}

/// Nothing else loads drivers in the lab's guest.
fn any_without_driver() -> bool {
    let waits = |device: &Path| {
        let kind = fs::read_to_string(device.join("device"));
        kind.is_ok_and(|kind| kind.trim() == NETWORK_DEVICE) && !device.join("driver").exists()
    };
    fs::read_dir(DEVICES).is_ok_and(|devices| devices.flatten().any(|device| waits(&device.path())))
}

fn links() -> Result<Vec<LinkMessage>, TopologyError> {
    let links = Netlink::route().and_then(|mut kernel| kernel.links().map_err(io::Error::from));
    links.map_err(asked("list the network devices"))
}

/// The device with this hardware address.
fn found(links: &[LinkMessage], mac: [u8; 6]) -> Option<Found> {
    let is_its =
        |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::Address(its) if *its == mac);
    let link = links.iter().find(|link| link.attributes.iter().any(is_its))?;
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })?;
    let mtu = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })?;
    let threaded = fs::read_to_string(threaded_switch(&name)).ok();
    Some(Found { name, mtu, threaded })
}

fn threaded_switch(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name).join("threaded")
}

fn move_away(name: &str, namespace: i32) -> Result<(), TopologyError> {
    Rtnetlink::open()?.change(name, vec![LinkAttribute::NetNsFd(namespace)])
}

fn rename(name: &str, new: &str) -> Result<(), TopologyError> {
    Rtnetlink::open()?.change(name, vec![LinkAttribute::IfName(new.to_owned())])
}
