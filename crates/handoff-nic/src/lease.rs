//! Queues of a card for a program in another network namespace, such as that of a container.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::kernel::Kernel;
use crate::namespace::Namespace;
use crate::pair::Pair;
use crate::redirect::ADDRESSES;
use crate::{Change, Error, Flow, Nic, Plan, Wanted};

/// Who gets queues, and how to reach it.
///
/// ```no_run
/// use handoff_nic::{Directory, Lease, Namespace, Prepared, Wanted};
///
/// # fn main() -> Result<(), handoff_nic::Error> {
/// let lease = Lease {
///     to: Namespace::find("4711")?,
///     device: "nk0".to_owned(),
///     addresses: vec!["10.9.0.2".parse().expect("an address")],
///     ports: Vec::new(),
///     routes: Vec::new(),
/// };
/// let leased = Prepared::leased("eth0", Wanted::Count(1), false, &lease, &Directory::default())?;
/// println!("queue 1 of nk0 there is queue {} of eth0", leased.queues()[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Lease {
    /// The network namespace.
    pub to: Namespace,
    /// The name of the interface that appears there.
    pub device: String,
    /// The addresses: packets that arrive at the card for them go there, and no others. The interface gets the
    /// addresses that the namespace does not have yet. Other hosts need a route to them by the card's host.
    pub addresses: Vec<IpAddr>,
    /// Whether only TCP packets for these ports fill the leased queues; none for all. The other packets for the
    /// addresses go there by the host's own queues. While a program has a queue bound, only it can read what
    /// fills that queue.
    pub ports: Vec<u16>,
    /// What the namespace reaches by it; by default the networks of the card, unless the namespace has all of
    /// the addresses, and routes, already.
    pub routes: Vec<IpNet>,
}

impl Lease {
    /// What the card must provide: so many queues, to which TCP packets for the addresses are steered,
    /// spread over all if there are several.
    pub fn plan(&self, queues: Wanted, hardware_gro: bool) -> Plan {
        // 0 stands for all ports.
        let ports = if self.ports.is_empty() { &[0][..] } else { &self.ports };
        let flow = |address, port| (Flow::listening(SocketAddr::new(address, port)), 0);
        let flows = self.addresses.iter().flat_map(|it| ports.iter().map(|port| flow(*it, *port)));
        let flows = flows.collect();
        Plan { queues, flows, spread: true, buffer_length: None, hardware_gro }
    }

    /// The changes beyond those of the plan, in order.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a lease that makes no sense.
    pub fn changes(&self, nic: &Nic, queues: &[u32]) -> Result<[Change; 2], Error> {
        self.on(&Kernel::open()?, nic, queues)
    }

    pub(crate) fn on(
        &self,
        kernel: &Kernel,
        nic: &Nic,
        queues: &[u32],
    ) -> Result<[Change; 2], Error> {
        let name = &nic.name;
        if self.to.inode == kernel.namespace.inode {
            let cause = format!("{name} is in that network namespace itself: no lease is needed");
            return Err(Error::invalid(cause));
        }
        if self.addresses.is_empty() || self.addresses.len() > ADDRESSES {
            let cause =
                format!("a lease has 1 to {ADDRESSES} addresses, not {}", self.addresses.len());
            return Err(Error::invalid(cause));
        }
        if !is_a_name(&self.device) {
            return Err(Error::invalid(format!(
                "a device cannot be named \"{}\": choose 1 to 15 letters or digits",
                self.device
            )));
        }
        let has = self.to.addresses()?;
        let all = kernel.addresses().map_err(Error::doing("listing the addresses"))?;
        for (at, address) in self.addresses.iter().enumerate() {
            if all.iter().any(|(_, net)| net.addr() == *address) {
                return Err(Error::invalid(format!(
                    "{address} is an address of this host, which would lose it: choose another"
                )));
            }
            if !is_of_one_host(address) {
                return Err(Error::invalid(format!("{address} is no address of one host")));
            }
            if self.addresses[..at].contains(address) {
                return Err(Error::invalid(format!("{address} is there twice")));
            }
        }
        let routes = match &self.routes[..] {
            [] => {
                let nets = kernel.networks(nic.index);
                let nets = nets.map_err(Error::doing(format!("listing the networks of {name}")))?;
                let is_like = |net: &IpNet| {
                    let is_new = |it: &&IpAddr| !has.contains(it);
                    let mut new = self.addresses.iter().filter(is_new);
                    new.any(|it| it.is_ipv4() == net.addr().is_ipv4())
                };
                let mut nets: Vec<_> = nets.iter().map(IpNet::trunc).filter(is_like).collect();
                nets.sort();
                nets.dedup();
                nets
            }
            routes => routes.iter().map(IpNet::trunc).collect(),
        };
        let card = kernel.link(nic.index)?;
        let card = card.ok_or_else(|| Error::Gone { name: name.clone() })?;
        let pair = Pair::new(&card, queues, &self.to, &self.device, &self.addresses, routes);
        pair.check_room(kernel)?;
        let redirect =
            Change::Redirect { to: pair.name.clone(), addresses: self.addresses.clone() };
        Ok([Change::Pair(pair), redirect])
    }
}

/// Whether other networks than one link may know a host by it. An IPv4 address in the words of IPv6 names none.
fn is_of_one_host(address: &IpAddr) -> bool {
    let only_here = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => {
            address.is_unicast_link_local() || address.to_ipv4_mapped().is_some()
        }
    };
    !(only_here || address.is_unspecified() || address.is_multicast() || address.is_loopback())
}

/// Whether the kernel accepts it as the name of an interface (`dev_valid_name`, and no pattern).
fn is_a_name(name: &str) -> bool {
    let is_bad = |byte: u8| matches!(byte, b'/' | b':' | b'%') || byte.is_ascii_whitespace();
    (1..=15).contains(&name.len()) && name != "." && name != ".." && !name.bytes().any(is_bad)
}
