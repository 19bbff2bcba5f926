//! Probes of one network interface: whether lent payload leaves it uncopied, and whether it can give us
//! an rx queue.
//!
//! Kernel interface: rtnetlink for the list and the kind, ethtool netlink for scatter-gather, checksum
//! offload and the header/data split, `SIOCETHTOOL` for the driver's name. The probe changes nothing,
//! and binds no rx queue, because that interrupts the queue's traffic.

use std::collections::BTreeSet;
use std::io;

use handoff_sys::ethtool::{self as abi, Features};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::CapabilitySet;

use super::answer::{Answer, Capability, System, named};
use super::memory::{holds, without_net_admin};
use super::netlink::{self, DataSplit};

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

/// What the network interface `name` can do; empty if it does not exist.
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
    match netlink::features(name) {
        Ok(features) => OFFLOADS
            .iter()
            .find_map(|offload| offload.missing(name, &features))
            .unwrap_or_else(|| Answer::yes().detail(described(name, link))),
        Err(error) => Answer::unknown(format!("its offloads cannot be read: {error}")),
    }
}

/// What a device must do itself, so that lent payload leaves uncopied.
struct Offload {
    what: &'static str,
    /// Any one of these suffices.
    features: &'static [&'static str],
    /// Its name in the ethtool command.
    option: &'static str,
    without: &'static str,
}

const OFFLOADS: [Offload; 2] = [
    Offload {
        what: "scatter-gather",
        features: &["tx-scatter-gather"],
        option: "sg",
        without: "the kernel copies what it sends",
    },
    Offload {
        what: "transmit checksum offload",
        features: &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"],
        option: "tx",
        without: "the CPU reads it all",
    },
];

impl Offload {
    /// Why the device does not do it, if it does not.
    fn missing(&self, name: &str, features: &Features) -> Option<Answer> {
        let Self { what, without, option, .. } = self;
        let among = |set: &BTreeSet<String>| self.features.iter().any(|one| set.contains(*one));
        if among(&features.active) {
            return None;
        }
        Some(if !among(&features.switchable) {
            Answer::no(format!("the driver has no {what}, so {without}"))
                .remedy("another network card, or the copy engine on its routes, as `auto` does")
        } else if among(&features.wanted) {
            Answer::no(format!("{what} is asked for and not given, so {without}"))
                .remedy("the remedy of the device below it, or the copy engine, as `auto` does")
        } else {
            Answer::no(format!("{what} is off, so {without}"))
                .remedy(format!("ethtool -K {name} {option} on"))
        })
    }
}

fn described(name: &str, link: &LinkMessage) -> String {
    let driver = driver(name).unwrap_or_else(|_| "unknown".to_owned());
    format!(
        "driver {driver}, {} rx queues, scatter-gather and checksum offload on",
        rx_queues(link)
    )
}

/// Of a netkit device, whose queues but the first are leased.
fn leased(name: &str) -> Answer {
    match netlink::rx_queues(name) {
        Ok(Some(count @ 2..)) if holds(CapabilitySet::NET_ADMIN) => {
            let (noun, last) = (if count == 2 { "queue" } else { "queues 1 to" }, count - 1);
            Answer::yes().detail(format!("{noun} {last} leased from a card"))
        }
        Ok(Some(2..)) => without_net_admin("binding a leased rx queue"),
        Ok(_) => Answer::no("no queue of a card is leased to it")
            .remedy("on the card's host: handoff nic lease CARD --to PID --address ADDRESS"),
        Err(error) => Answer::unknown(format!("its queues cannot be listed: {error}")),
    }
}

fn zcrx(name: &str, link: &LinkMessage) -> Answer {
    if kind(link) == Some(&InfoKind::Netkit) {
        return leased(name);
    }
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

fn driver(name: &str) -> io::Result<String> {
    let mut info = abi::DriverInfo::new();
    // SAFETY: ETHTOOL_GDRVINFO, which the structure carries, writes an ethtool_drvinfo.
    unsafe { abi::ioctl(socket(AddressFamily::INET, SocketType::DGRAM, None)?, name, &mut info) }?;
    Ok(info.driver())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Reason and remedy for this state of scatter-gather and of one kind of checksum.
    fn said(active: &[&str], wanted: &[&str], switchable: &[&str]) -> Option<(String, String)> {
        let (active, wanted) = (names(active), names(wanted));
        let features = Features { active, wanted, switchable: names(switchable) };
        let answer = OFFLOADS.iter().find_map(|offload| offload.missing("eth7", &features))?;
        Some((answer.reason.expect("a reason"), answer.remedy.expect("a remedy")))
    }

    const SG: &str = "tx-scatter-gather";
    const SUM: &str = "tx-checksum-ipv4";

    #[test]
    fn nothing_is_missing_where_both_are_done_however_they_can_be_switched() {
        assert_eq!(said(&[SG, SUM], &[], &[]), None);
        assert_eq!(said(&[SG, SUM], &[SG, SUM], &[SG, SUM]), None);
        assert_eq!(said(&[SG, "tx-checksum-ip-generic"], &[], &[SUM]), None);
    }

    #[test]
    fn a_command_is_proposed_where_it_works_only() {
        let (reason, remedy) = said(&[], &[], &[SG, SUM]).expect("both are missing");
        assert_eq!(remedy, "ethtool -K eth7 sg on");
        assert!(reason.contains("scatter-gather is off"), "{reason}");
        let (_, remedy) = said(&[SG], &[SG], &[SG, SUM]).expect("checksums are missing");
        assert_eq!(remedy, "ethtool -K eth7 tx on");

        for (active, what) in [(&[][..], "scatter-gather"), (&[SG], "transmit checksum offload")] {
            let (reason, remedy) = said(active, &[], &[]).expect("one is missing");
            assert!(reason.contains(&format!("the driver has no {what}")), "{reason}");
            assert!(remedy.starts_with("another network card"), "{remedy}");
            let (reason, remedy) = said(active, &[SG, SUM], &[SG, SUM]).expect("one is missing");
            assert!(reason.contains(&format!("{what} is asked for and not given")), "{reason}");
            assert!(remedy.contains("of the device below it"), "{remedy}");
        }
    }
}
