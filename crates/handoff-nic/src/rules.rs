//! Rules that say to which queue packets go (ntuple filters).
//!
//! Kernel interface: the rxnfc commands of the ethtool ioctl; netlink has none for rules.

use handoff_sys::ethtool::{self as abi, Classification, FlowRule, RuleList};
use handoff_sys::netlink::Refusal;
use rustix::io::Errno;
use serde::Serialize;

use crate::Flow;
use crate::kernel::Kernel;

/// Where a rule sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// To a queue.
    Queue(u32),
    /// To the queues of an RSS context, with an offset.
    Context {
        /// Number of the context.
        context: u32,
        /// The offset, added to the queues of its table.
        first: u32,
    },
    /// Elsewhere: dropped, to a virtual function, or to wake the machine.
    Elsewhere,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Its place in the table; if several rules match, the first decides.
    pub location: u32,
    /// Which packets it matches; `None` if a [`Flow`] cannot say it.
    pub flow: Option<Flow>,
    /// Where it sends them.
    pub target: Target,
}

/// The rules of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Room in the table; 0 where the driver does not say.
    pub room: u64,
    /// The rules, by location.
    pub rules: Vec<Rule>,
}

impl Target {
    /// As a rule says it: a queue, or what is added to those of a context.
    pub(crate) fn new(queue: u32, context: Option<u32>) -> Self {
        match context {
            Some(context) => Self::Context { context, first: queue },
            None => Self::Queue(queue),
        }
    }
}

impl Rules {
    /// The rule that sends exactly this flow there.
    pub(crate) fn find(&self, flow: &Flow, target: Target) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.flow == Some(*flow) && rule.target == target)
    }

    /// The rule that decides about all packets of this flow, if there is one.
    pub(crate) fn covering(&self, flow: &Flow) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.flow.is_some_and(|other| other.covers(flow)))
    }

    fn free_location(&self) -> Option<u32> {
        let taken = |location: &u32| self.rules.iter().any(|rule| rule.location == *location);
        (0..self.room as u32).find(|location| !taken(location))
    }
}

impl Kernel {
    /// The rules; `None` where the driver has none.
    pub(crate) fn rules(&self, index: u32) -> Result<Option<Rules>, Refusal> {
        let mut list = RuleList::new();
        // SAFETY: ETHTOOL_GRXCLSRLALL, which the list carries, writes as many locations as that says
        // it has room for.
        match unsafe { self.ioctl(index, &mut *list) } {
            Err(refusal) if refusal.is(Errno::OPNOTSUPP.raw_os_error()) => return Ok(None),
            done => done?,
        }
        let mut rules = Vec::new();
        for location in list.locations.iter().take(list.count as usize) {
            let mut rule = Classification::new(abi::GRXCLSRULE);
            rule.rule.location = *location;
            // SAFETY: ETHTOOL_GRXCLSRULE reads and writes an ethtool_rxnfc without locations.
            match unsafe { self.ioctl(index, &mut rule) } {
                // It went away after the list was made.
                Err(refusal) if refusal.is(Errno::NOENT.raw_os_error()) => continue,
                done => done?,
            }
            rules.push(Rule {
                location: *location,
                flow: Flow::of(&rule.rule),
                target: target(&rule.rule, rule.count),
            });
        }
        rules.sort_by_key(|rule| rule.location);
        Ok(Some(Rules { room: list.table(), rules }))
    }

    /// Adds a rule behind the existing ones, or where the driver chooses.
    pub(crate) fn add_rule(
        &self,
        index: u32,
        flow: &Flow,
        queue: u32,
        context: Option<u32>,
    ) -> Result<(), Refusal> {
        let mut ask = Classification::new(abi::GRXCLSRLCNT);
        // SAFETY: ETHTOOL_GRXCLSRLCNT reads and writes an ethtool_rxnfc without locations.
        unsafe { self.ioctl(index, &mut ask) }?;
        let mut add = Classification::new(abi::SRXCLSRLINS);
        add.rule = flow.rule(queue);
        if let Some(context) = context {
            add.rule.flow_type |= abi::FLOW_RSS;
            add.count = context;
        }
        add.rule.location = if ask.data & abi::LOCATION_SPECIAL != 0 {
            abi::LOCATION_ANY
        } else {
            let rules = self.rules(index)?.unwrap_or_default();
            rules
                .free_location()
                .ok_or_else(|| Refusal::from(std::io::Error::from(Errno::NOSPC)))?
        };
        // SAFETY: ETHTOOL_SRXCLSRLINS reads and writes an ethtool_rxnfc without locations.
        unsafe { self.ioctl(index, &mut add) }
    }

    /// Removes the rule that sends this flow there, wherever the rule is.
    pub(crate) fn remove_rule(
        &self,
        index: u32,
        flow: &Flow,
        target: Target,
    ) -> Result<(), Refusal> {
        let rules = self.rules(index)?.unwrap_or_default();
        let Some(rule) = rules.find(flow, target) else { return Ok(()) };
        let mut remove = Classification::new(abi::SRXCLSRLDEL);
        remove.rule.location = rule.location;
        // SAFETY: ETHTOOL_SRXCLSRLDEL reads an ethtool_rxnfc without locations.
        unsafe { self.ioctl(index, &mut remove) }
    }
}

fn target(rule: &FlowRule, context: u32) -> Target {
    // The bits above a queue's 32 are the number of a virtual function.
    match u32::try_from(rule.cookie) {
        Ok(first) if rule.flow_type & abi::FLOW_RSS != 0 => Target::Context { context, first },
        Ok(queue) => Target::Queue(queue),
        Err(_) => Target::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ip;

    #[test]
    fn targets_are_told_apart() {
        let mut rule = Flow::port(Ip::V4, 80).rule(3);
        assert_eq!(target(&rule, 0), Target::Queue(3));
        rule.flow_type |= abi::FLOW_RSS;
        assert_eq!(target(&rule, 2), Target::Context { context: 2, first: 3 });
        for cookie in [u64::MAX, abi::FLOW_WAKE, 1 << 32] {
            rule.cookie = cookie;
            assert_eq!(target(&rule, 0), Target::Elsewhere);
        }
    }

    #[test]
    fn the_first_free_location_is_taken() {
        let rule = |location| Rule { location, flow: None, target: Target::Elsewhere };
        let rules = Rules { room: 3, rules: vec![rule(0), rule(2)] };
        assert_eq!(rules.free_location(), Some(1));
        let full = Rules { room: 2, rules: vec![rule(0), rule(1)] };
        assert_eq!(full.free_location(), None);
    }
}
