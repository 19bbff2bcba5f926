//! What stands between an interface and zero-copy receive, with cause and remedy.

use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;

use crate::Nic;
use crate::queues::list;

/// How much an obstacle matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// It rules zero-copy receive out.
    Blocks,
    /// Preparing the interface removes it.
    Prepared,
    /// Zero-copy receive works, but not as you might expect.
    Beware,
}

/// One thing to know about an interface before queues of it are set aside.
///
/// [`Nic::obstacles`](crate::Nic::obstacles) returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// How much it matters.
    pub weight: Weight,
    /// What the obstacle is.
    pub cause: String,
    /// What helps against it.
    pub remedy: Option<String>,
}

impl Nic {
    /// What stands in the way of zero-copy receive on this interface, the worst first.
    ///
    /// The driver must be able to exchange the memory of one queue while the others run; whether it can
    /// shows only when a queue is bound.
    pub fn obstacles(&self) -> Vec<Obstacle> {
        self.obstacles_for(may_configure())
    }

    fn obstacles_for(&self, may_configure: bool) -> Vec<Obstacle> {
        let mut found = Found(Vec::new());
        // An interface without queues of its own lacks the rest by nature: no need to list it.
        if !self.lacks_queues(&mut found) {
            self.lacks_settings(&mut found);
        }
        if !may_configure {
            found.blocks("you may not configure it", "CAP_NET_ADMIN: run as root");
        }
        if let Some(above) = &self.controller {
            found.beware(
                format!(
                    "it belongs to {} ({}): packets for that may arrive by other ports too",
                    above.name,
                    above.kind.as_deref().unwrap_or("unknown")
                ),
                match &above.others[..] {
                    [] => None,
                    others => Some(format!("prepare these as well: {}", others.join(", "))),
                },
            );
        }
        for queue in self.queues.iter().flatten() {
            if let Some(bound) = queue.bound {
                found.beware(format!("queue {} is bound to {}", queue.id, bound.name()), None);
            }
        }
        found.0.sort_by_key(|obstacle| obstacle.weight as u8);
        found.0
    }

    /// Whether the packets of this interface arrive at other interfaces, or at no card.
    fn lacks_queues(&self, found: &mut Found) -> bool {
        const CARD: &str = "a network card whose driver has header/data split";
        if self.loopback {
            found.blocks("it is the loopback interface, which is no card", CARD);
        } else if !self.leased().is_empty() {
            let leased: Vec<_> = self.leased().iter().map(|queue| queue.id).collect();
            found.blocks(
                format!("it leases {} from a card: nothing is to be prepared", list(&leased)),
                "bind them as they are",
            );
        } else if !self.lower.is_empty() {
            let kind = self.kind.as_deref().unwrap_or("interface");
            let lower = self.lower.join(", ");
            found.blocks(
                format!("it is a {kind} over {lower}: the rx queues are theirs"),
                format!("prepare what it stands on: {lower}"),
            );
        } else if self.rings.is_none_or(|rings| rings.data_split.is_none()) {
            let driver = self.driver.as_deref().unwrap_or("unknown");
            found.blocks(format!("its driver, {driver}, has no header/data split"), CARD);
        } else {
            return false;
        }
        true
    }

    fn lacks_settings(&self, found: &mut Found) {
        let name = &self.name;
        if !self.up {
            found.blocks("it is down", format!("ip link set {name} up"));
        }
        if self.queues.is_none() {
            found.blocks(
                "the kernel does not tell who has bound queues",
                "a kernel with the netdev family of netlink (Linux 6.8 or later)",
            );
        }
        match self.channels {
            Some(channels) if channels.max > 1 => {
                if channels.now == 1 {
                    found.prepared(
                        "it has one rx queue, which other traffic needs",
                        format!("ethtool -L {name} {} 2", channels.kind.name()),
                    );
                } else if self.table().is_none() {
                    found.blocks(
                        "no table of RSS can be set, so all traffic may reach all queues",
                        "a card whose driver has RSS",
                    );
                }
            }
            _ => found.blocks(
                "it has one rx queue only, and other traffic needs it",
                "a card, or a virtual one made, with several queues",
            ),
        }
        if self.rules.is_none() {
            found.blocks(
                "its driver has no rules that lead a connection to a queue",
                "a card whose driver has ntuple filters",
            );
        } else if !self.ntuple.on && !self.ntuple.switchable {
            found.blocks(
                "rules (ntuple filters) are off and cannot be switched on",
                "a card whose driver has them",
            );
        } else if !self.ntuple.on {
            found.prepared("rules are off", format!("ethtool -K {name} ntuple on"));
        }
        let rings = self.rings.unwrap_or_default();
        if !rings.splits() {
            found.prepared(
                "header/data split is off",
                format!("ethtool -G {name} tcp-data-split on"),
            );
        }
        if let Some(threshold) = rings.split_threshold.filter(|threshold| *threshold > 0) {
            found.prepared(
                format!("packets of up to {threshold} bytes are not split"),
                format!("ethtool -G {name} hds-thresh 0"),
            );
        }
        if let Some(table) = self.table()
            && self.rx_queues() > 1
            && table.queues().len() as u32 == self.rx_queues()
        {
            found.prepared(
                "RSS spreads the host's own traffic over all queues",
                format!("ethtool -X {name} equal {}", self.rx_queues() - 1),
            );
        }
    }
}

struct Found(Vec<Obstacle>);

impl Found {
    fn add(&mut self, weight: Weight, cause: String, remedy: Option<String>) {
        self.0.push(Obstacle { weight, cause, remedy });
    }

    fn blocks(&mut self, cause: impl Into<String>, remedy: impl Into<String>) {
        self.add(Weight::Blocks, cause.into(), Some(remedy.into()));
    }

    fn prepared(&mut self, cause: impl Into<String>, remedy: impl Into<String>) {
        self.add(Weight::Prepared, cause.into(), Some(remedy.into()));
    }

    fn beware(&mut self, cause: String, remedy: Option<String>) {
        self.add(Weight::Beware, cause, remedy);
    }
}

fn may_configure() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::Controller;
    use crate::nic::tests::card;
    use crate::settings::Rings;

    fn blocks(nic: &Nic) -> Vec<String> {
        let obstacles = nic.obstacles_for(true).into_iter();
        let blocking = obstacles.filter(|obstacle| obstacle.weight == Weight::Blocks);
        blocking.map(|obstacle| obstacle.cause).collect()
    }

    #[test]
    fn a_card_is_fit_and_told_what_preparing_does() {
        let found = card(4, 8).obstacles_for(true);
        assert!(found.iter().all(|obstacle| obstacle.weight == Weight::Prepared), "{found:?}");
        let causes: Vec<_> = found.iter().map(|obstacle| &obstacle.cause[..]).collect();
        assert!(causes.contains(&"header/data split is off"), "{causes:?}");
        assert!(causes.iter().any(|cause| cause.contains("RSS spreads")), "{causes:?}");
        let mut ready = card(4, 8);
        ready.rings.as_mut().expect("has some").data_split = Some(2);
        ready.tables[0].entries = crate::even(128, 3);
        assert_eq!(ready.obstacles_for(true), []);
    }

    #[test]
    fn each_cause_is_named() {
        type Spoil = fn(&mut Nic);
        let cases: [(Spoil, &str); 8] = [
            (|nic| nic.loopback = true, "loopback"),
            (|nic| nic.up = false, "it is down"),
            (|nic| nic.rings = Some(Rings::default()), "card, has no header/data split"),
            (|nic| nic.channels.as_mut().expect("has some").max = 1, "one rx queue only"),
            (|nic| nic.tables.clear(), "no table of RSS"),
            (|nic| nic.rules = None, "has no rules"),
            (|nic| nic.ntuple = Default::default(), "cannot be switched on"),
            (|nic| nic.queues = None, "does not tell who"),
        ];
        for (spoil, expected) in cases {
            let mut nic = card(4, 8);
            spoil(&mut nic);
            let causes = blocks(&nic);
            assert_eq!(causes.len(), 1, "{causes:?}");
            assert!(causes[0].contains(expected), "{causes:?}");
        }
    }

    #[test]
    fn bonds_name_their_ports_and_ports_their_bond() {
        let mut bond = card(4, 8);
        bond.kind = Some("bond".to_owned());
        bond.lower = vec!["eth0".to_owned(), "eth1".to_owned()];
        let found = bond.obstacles_for(true);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].cause.contains("bond over eth0, eth1"), "{found:?}");
        let mut port = card(4, 8);
        let others = vec!["eth1".to_owned()];
        let kind = Some("bond".to_owned());
        port.controller = Some(Controller { name: "bond0".to_owned(), kind, others });
        assert_eq!(blocks(&port), [""; 0]);
        let found = port.obstacles_for(true);
        let beware = found.iter().find(|obstacle| obstacle.weight == Weight::Beware);
        let beware = beware.expect("is told");
        assert!(beware.cause.contains("bond0 (bond)"), "{beware:?}");
        assert!(beware.remedy.as_ref().expect("there is one").contains("eth1"), "{beware:?}");
    }

    #[test]
    fn whoever_may_not_is_told() {
        let found = card(4, 8).obstacles_for(false);
        assert_eq!(found[0].weight, Weight::Blocks);
        assert!(found[0].remedy.as_ref().expect("there is one").contains("CAP_NET_ADMIN"));
    }
}
