//! Probes of one network interface: what becomes of lent payload on it, and whether it can hand us
//! its rx queue.
//!
//! Kernel interface: rtnetlink for the list and the kind, `SIOCETHTOOL` for scatter-gather and
//! checksum offload, ethtool netlink for the header/data split. Nothing is changed, and no rx queue
//! is bound, because that interrupts its traffic.

use std::io;

use handoff_sys::ethtool as abi;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, socket};

use super::netlink::{self, DataSplit};
use super::{Answer, Capability, System, named};

/// The network interfaces of this network namespace, by name.
pub fn interfaces() -> Vec<String> {
    match netlink::links() {
        Ok(links) => links.iter().filter_map(|link| name(link).map(str::to_owned)).collect(),
        Err(error) => {
            ::tracing::warn!(%error, "the network interfaces cannot be listed");
            Vec::new()
        }
    }
}

/// What the network interface `name` can do; empty if there is none of that name.
pub fn interface(name: &str) -> Vec<Capability> {
    let links = netlink::links().unwrap_or_default();
    let Some(link) = links.iter().find(|link| self::name(link) == Some(name)) else {
        return Vec::new();
    };
    let row = |what: &str, needs_kernel, answer| {
        named(System::Interface, format!("{name}: {what}").into(), needs_kernel, answer)
    };
    vec![
        row("zero-copy send", None, zero_copy_send(name, link)),
        row("zcrx", Some("6.15"), zcrx(name, link)),
    ]
}

fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

fn kind(link: &LinkMessage) -> Option<&InfoKind> {
    let infos = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    })?;
    infos.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })
}

fn rx_queues(link: &LinkMessage) -> u32 {
    let count = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::NumRxQueues(count) => Some(*count),
        _ => None,
    });
    count.unwrap_or(1)
}

fn zero_copy_send(name: &str, link: &LinkMessage) -> Answer {
    let local = link.header.flags.contains(LinkFlags::Loopback)
        || matches!(kind(link), Some(InfoKind::Veth | InfoKind::Netkit | InfoKind::Tun));
    if local {
        return Answer::no("what it delivers stays on this host, so the kernel copies it")
            .remedy("none: use the copy engine on such routes, as `auto` does");
    }
    let offloads = value(name, abi::GSG).and_then(|sg| Ok((sg, value(name, abi::GTXCSUM)?)));
    match offloads {
        Ok((0, _)) => Answer::no("scatter-gather is off, so the kernel copies what it sends")
            .remedy(format!("ethtool -K {name} sg on")),
        Ok((_, 0)) => Answer::no("transmit checksums are not offloaded, so the CPU reads it all")
            .remedy(format!("ethtool -K {name} tx on")),
        Ok(_) => Answer::yes().detail(described(name, link)),
        Err(error) => Answer::unknown(format!("its offloads cannot be read: {error}")),
    }
}

fn described(name: &str, link: &LinkMessage) -> String {
    let driver = driver(name).unwrap_or_else(|_| "unknown".to_owned());
    format!(
        "driver {driver}, {} rx queues, scatter-gather and checksum offload on",
        rx_queues(link)
    )
}

fn zcrx(name: &str, link: &LinkMessage) -> Answer {
    const MORE: &str = "a network card whose driver has header/data split and queue management";
    match netlink::data_split(name) {
        Ok(DataSplit::None) => Answer::no("the driver has no header/data split").remedy(MORE),
        Ok(DataSplit::Off) => Answer::no("header/data split is off")
            .remedy(format!("handoff nic prepare {name}, or ethtool -G {name} tcp-data-split on")),
        Ok(DataSplit::On) if rx_queues(link) < 2 => {
            Answer::no("there is one rx queue only, and other traffic needs it")
                .remedy(format!("handoff nic prepare {name}, or ethtool -L {name} combined 2"))
        }
        Ok(DataSplit::On) => Answer::unknown(
            "header/data split is on; binding a queue would interrupt it, so it is not tried",
        ),
        Err(error) => Answer::unknown(format!("its rings cannot be read: {error}")),
    }
}

fn value(name: &str, command: u32) -> io::Result<u32> {
    let mut value = abi::Value { cmd: command, data: 0 };
    // SAFETY: both commands read and write an ethtool_value.
    unsafe { abi::ioctl(any_socket()?, name, &mut value) }?;
    Ok(value.data)
}

fn driver(name: &str) -> io::Result<String> {
    let mut info = abi::DriverInfo::new();
    // SAFETY: ETHTOOL_GDRVINFO, which the structure carries, writes an ethtool_drvinfo.
    unsafe { abi::ioctl(any_socket()?, name, &mut info) }?;
    Ok(info.driver())
}

fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::INET, SocketType::DGRAM, None)?)
}
