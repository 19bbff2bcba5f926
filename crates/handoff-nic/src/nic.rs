//! One interface as it stands, read as a whole.

use handoff_sys::ethtool::Features;
use serde::Serialize;

use crate::kernel::Kernel;
use crate::link::Link;
use crate::queues::Queue;
use crate::rules::{Rules, Target};
use crate::settings::{Channels, HARDWARE_GRO, HASH, NTUPLE, Rings, Table, reading};
use crate::state::Key;
use crate::{Error, even};

/// A feature of the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Whether it is on.
    pub on: bool,
    /// Whether it can be switched.
    pub switchable: bool,
}

/// Another interface that this one belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Controller {
    /// Its name.
    pub name: String,
    /// `bond`, `bridge`, `team`, ...
    pub kind: Option<String>,
    /// The other interfaces that belong to it.
    pub others: Vec<String>,
}

/// One interface: what it is, its settings, and who uses its rx queues.
///
/// A snapshot that holds no resources. Reading it needs no privileges.
///
/// ```
/// use handoff_nic::Nic;
///
/// # fn main() -> Result<(), handoff_nic::Error> {
/// for nic in Nic::all()? {
///     println!("{}: {} rx queues, driver {:?}", nic.name, nic.rx_queues(), nic.driver);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, Serialize)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Its number in the namespace.
    pub index: u32,
    /// Inode of the network namespace.
    pub netns: u64,
    #[serde(skip)]
    pub(crate) key: Key,
    /// Hardware address.
    pub address: String,
    /// The driver, if it tells its name.
    pub driver: Option<String>,
    /// The kind of virtual interface; `None` for cards.
    pub kind: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// The MTU: the largest packet, in bytes without the link header.
    pub mtu: u32,
    /// The bond, bridge or team that it is a port of.
    pub controller: Option<Controller>,
    /// The interfaces below it: the ports of a bond, the base of a VLAN.
    pub lower: Vec<String>,
    /// Its rx queues, in the driver's way of counting; `None` where the driver does not tell.
    pub channels: Option<Channels>,
    /// Its rx rings; `None` where the driver does not tell.
    pub rings: Option<Rings>,
    /// Whether rules choose queues.
    pub ntuple: Feature,
    /// Whether the card joins packets of a connection (hardware GRO).
    pub hardware_gro: Feature,
    /// Whether the card reports the hash of a packet.
    pub hash: Feature,
    /// The RSS tables; the first is for packets that no rule matches.
    pub tables: Vec<Table>,
    /// Whether there may be RSS tables beside the first, for packets that rules send there.
    pub rss_contexts: bool,
    /// The rules; `None` where the driver has none.
    pub rules: Option<Rules>,
    /// The rx queues as the stack sees them; `None` where the kernel does not tell, empty while the
    /// interface is down.
    pub queues: Option<Vec<Queue>>,
}

impl Nic {
    /// Reads the interface with this name, in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoInterface`] if no interface has this name.
    pub fn look(name: &str) -> Result<Self, Error> {
        let kernel = Kernel::open()?;
        let links = kernel.links()?;
        let Some(link) = links.iter().find(|link| link.name == name) else {
            let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
            let here = names.join(", ");
            return Err(Error::NoInterface { name: name.to_owned(), here });
        };
        Self::read(&kernel, link, &links)
    }

    /// Reads all interfaces of the namespace.
    ///
    /// # Errors
    ///
    /// If one cannot be read.
    pub fn all() -> Result<Vec<Self>, Error> {
        let kernel = Kernel::open()?;
        let links = kernel.links()?;
        let mut all = Vec::new();
        for link in &links {
            match Self::read(&kernel, link, &links) {
                // It went away after the list was made.
                Err(_) if kernel.link(link.index)?.is_none() => {}
                nic => all.push(nic?),
            }
        }
        Ok(all)
    }

    /// Reads the interface with this index; `None` if it is gone.
    pub(crate) fn again(kernel: &Kernel, index: u32) -> Result<Option<Self>, Error> {
        let links = kernel.links()?;
        let link = links.iter().find(|link| link.index == index);
        link.map(|link| Self::read(kernel, link, &links)).transpose()
    }

    fn read(kernel: &Kernel, link: &Link, links: &[Link]) -> Result<Self, Error> {
        let (index, name) = (link.index, &link.name[..]);
        let features = kernel.features(index).map_err(reading("features", name))?;
        Ok(Self {
            name: link.name.clone(),
            index,
            netns: kernel.namespace.inode,
            key: Key { netns: kernel.netns, index },
            address: link.address.clone(),
            driver: kernel.driver(index),
            kind: link.kind.clone(),
            up: link.up,
            loopback: link.loopback,
            mtu: link.mtu,
            controller: controller(link, links),
            lower: lower(link, links),
            channels: kernel.channels(index).map_err(reading("channels", name))?,
            rings: kernel.rings(index).map_err(reading("rings", name))?,
            ntuple: feature(&features, NTUPLE),
            hardware_gro: feature(&features, HARDWARE_GRO),
            hash: feature(&features, HASH),
            tables: kernel.tables(index).map_err(reading("tables of RSS", name))?,
            rss_contexts: kernel.may_have_contexts(index),
            rules: kernel.rules(index).map_err(reading("rules", name))?,
            queues: kernel.queues(index).map_err(reading("queues", name))?,
        })
    }

    /// The number of rx queues.
    pub fn rx_queues(&self) -> u32 {
        self.channels.map_or(1, |channels| channels.now)
    }

    /// The queues that this interface, in the network namespace of a container, has leased from a card. They
    /// are ready to be bound: the card's host has prepared the card, and steers to them.
    pub fn leased(&self) -> Vec<&Queue> {
        // All queues of a netkit device but the first are leased: it gets them in no other way.
        let is_netkit = self.kind.as_deref() == Some("netkit");
        self.queues.iter().flatten().filter(|queue| is_netkit && queue.id > 0).collect()
    }

    /// The RSS table for packets that no rule matches.
    pub fn table(&self) -> Option<&Table> {
        self.tables.iter().find(|table| table.context == 0)
    }

    /// Whether that table is the driver's own even spread.
    pub(crate) fn spreads_evenly(&self) -> bool {
        self.table()
            .is_some_and(|table| table.entries == even(table.entries.len(), self.rx_queues()))
    }

    /// Why a queue cannot be set aside, if it cannot: it is bound, or rules or contexts of others lead
    /// to it.
    pub fn use_of(&self, queue: u32) -> Option<String> {
        if queue == 0 {
            return Some("is for the host's own traffic".to_owned());
        }
        let known = self.queues.iter().flatten().find(|other| other.id == queue);
        if let Some(bound) = known.and_then(|queue| queue.bound) {
            return Some(format!("is bound to {}", bound.name()));
        }
        let rules = self.rules.iter().flat_map(|rules| &rules.rules);
        for rule in rules {
            let leads = match rule.target {
                Target::Queue(target) => target == queue,
                Target::Context { context, first } => self.tables.iter().any(|table| {
                    let to = |entry: &u32| entry.checked_add(first) == Some(queue);
                    table.context == context && table.entries.iter().any(to)
                }),
                Target::Elsewhere => false,
            };
            if leads {
                return Some(format!("is what rule {} leads to", rule.location));
            }
        }
        let contexts = self.tables.iter().filter(|table| table.context != 0);
        contexts
            .filter(|table| table.entries.contains(&queue))
            .map(|table| format!("belongs to RSS context {}", table.context))
            .next()
    }
}

fn controller(link: &Link, links: &[Link]) -> Option<Controller> {
    let index = link.controller?;
    let above = links.iter().find(|above| above.index == index)?;
    let others =
        links.iter().filter(|other| other.controller == Some(index) && other.index != link.index);
    Some(Controller {
        name: above.name.clone(),
        kind: above.kind.clone(),
        others: others.map(|other| other.name.clone()).collect(),
    })
}

fn lower(link: &Link, links: &[Link]) -> Vec<String> {
    // Two links that each lie on the other are the ends of a cable.
    let over = |other: &&Link| {
        other.controller == Some(link.index)
            || (link.lower == Some(other.index) && other.lower != Some(link.index))
    };
    links.iter().filter(over).map(|other| other.name.clone()).collect()
}

fn feature(features: &Features, name: &str) -> Feature {
    Feature { on: features.active.contains(name), switchable: features.switchable.contains(name) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::queues::Bound;
    use crate::rules::Rule;
    use crate::settings::ChannelKind;
    use crate::{Flow, Ip};

    /// A card with `now` of `max` queues that can do everything and has no special settings.
    pub(crate) fn card(now: u32, max: u32) -> Nic {
        let queue = |id| Queue { id, napi: Some(100 + id), irq: None, thread: None, bound: None };
        Nic {
            name: "eth7".to_owned(),
            index: 7,
            driver: Some("card".to_owned()),
            up: true,
            mtu: 1500,
            channels: Some(Channels { kind: ChannelKind::Combined, now, max }),
            rings: Some(Rings {
                entries: Some(256),
                max: Some(4096),
                data_split: Some(1),
                split_threshold: Some(0),
                buffer_length: None,
            }),
            ntuple: Feature { on: true, switchable: true },
            hardware_gro: Feature { on: false, switchable: true },
            hash: Feature { on: true, switchable: true },
            tables: vec![Table { context: 0, entries: even(128, now) }],
            rss_contexts: true,
            rules: Some(Rules { room: 64, rules: Vec::new() }),
            queues: Some((0..now).map(queue).collect()),
            ..Nic::default()
        }
    }

    #[test]
    fn what_uses_a_queue_is_named() {
        let mut nic = card(8, 8);
        assert_eq!(nic.use_of(7), None);
        assert!(nic.use_of(0).expect("taken").contains("own traffic"));
        nic.queues.as_mut().expect("told")[7].bound = Some(Bound::IoUring);
        let flow = Some(Flow::port(Ip::V4, 80));
        let rules = &mut nic.rules.as_mut().expect("has some").rules;
        rules.push(Rule { location: 5, flow, target: Target::Queue(6) });
        let target = Target::Context { context: 2, first: 1 };
        rules.push(Rule { location: 9, flow, target });
        nic.tables.push(Table { context: 2, entries: vec![3, 4] });
        for (queue, expected) in [
            (7, "bound to io_uring"),
            (6, "rule 5"),
            (5, "rule 9"),
            (4, "rule 9"),
            (3, "context 2"),
        ] {
            let why = nic.use_of(queue).expect("taken");
            assert!(why.contains(expected), "{queue}: {why}");
        }
        assert_eq!(nic.use_of(2), None);
    }

    #[test]
    fn ports_and_what_they_belong_to_know_each_other() {
        let link = |index, name: &str| Link { index, name: name.to_owned(), ..Link::default() };
        let bond = Link { kind: Some("bond".to_owned()), ..link(1, "bond0") };
        let one = Link { controller: Some(1), ..link(2, "eth0") };
        let two = Link { controller: Some(1), ..link(3, "eth1") };
        let vlan = Link { lower: Some(2), kind: Some("vlan".to_owned()), ..link(4, "eth0.5") };
        let veth = Link { lower: Some(6), ..link(5, "veth0") };
        let peer = Link { lower: Some(5), ..link(6, "veth1") };
        let links = [bond.clone(), one.clone(), two, vlan.clone(), veth.clone(), peer];
        assert_eq!(lower(&bond, &links), ["eth0", "eth1"]);
        assert_eq!(lower(&vlan, &links), ["eth0"]);
        assert!(lower(&veth, &links).is_empty());
        let above = controller(&one, &links).expect("is a port");
        assert_eq!((above.name.as_str(), &above.others[..]), ("bond0", &["eth1".to_owned()][..]));
    }
}
