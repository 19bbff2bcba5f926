//! One change of an interface: making it, checking it, and putting it back.
//!
//! A change knows the value before it and the value that it sets. So anyone who finds its record can
//! tell from the interface what to do: if the interface has the value that was set, put it back; if it
//! has the value from before, there is nothing to do; any other value means that somebody else has
//! changed the setting meanwhile.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use handoff_sys::netlink::Refusal;
use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::pair::Pair;
use crate::queues::list;
use crate::redirect;
use crate::rules::Target;
use crate::settings::{ChannelKind, NTUPLE, Ring};
use crate::{Flow, even};

/// A change of an interface. Its text says what it does, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The number of rx queues.
    Channels {
        /// How the driver counts them.
        kind: ChannelKind,
        /// The number before.
        from: u32,
        /// The number afterwards.
        to: u32,
    },
    /// A setting of the rings.
    Ring {
        /// Which setting.
        setting: Ring,
        /// The value before.
        from: u32,
        /// The value afterwards.
        to: u32,
    },
    /// A feature.
    Feature {
        /// Its name.
        name: String,
        /// Whether it is on afterwards; before, it was not.
        on: bool,
    },
    /// The RSS table for packets that no rule matches.
    Table {
        /// The table before.
        from: Vec<u32>,
        /// The table afterwards.
        to: Vec<u32>,
        /// Whether the driver had spread evenly on its own.
        even: bool,
    },
    /// A new RSS context, for packets that rules send there.
    Context {
        /// Its number.
        context: u32,
        /// Its table.
        to: Vec<u32>,
    },
    /// A new rule.
    Rule {
        /// Which packets it matches.
        flow: Flow,
        /// Where it sends them; with a context, what is added to the context's queues.
        queue: u32,
        /// The RSS context, if it sends them to one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<u32>,
    },
    /// A netkit pair whose far end has leased queues.
    Pair(Pair),
    /// Programs that carry packets between the card and a pair.
    Redirect {
        /// Name of the pair's near end.
        to: String,
        /// Whose packets.
        addresses: Vec<IpAddr>,
    },
}

/// How an interface relates to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// As before the change.
    Before,
    /// As after the change.
    After,
    /// Neither; this is the value.
    Other(String),
}

impl Change {
    /// Makes the change.
    pub(crate) fn make(&self, kernel: &Kernel, index: u32) -> Result<(), Refusal> {
        match self {
            Self::Channels { kind, to, .. } => kernel.set_channels(index, *kind, *to),
            Self::Ring { setting, to, .. } => kernel.set_ring(index, *setting, *to),
            Self::Feature { name, on } => kernel.set_feature(index, name, *on),
            Self::Table { to, .. } => kernel.set_table(index, to),
            Self::Context { context, to } => kernel.make_context(index, *context, to),
            Self::Rule { flow, queue, context } => kernel.add_rule(index, flow, *queue, *context),
            Self::Pair(pair) => pair.make(kernel, index),
            Self::Redirect { to, addresses } => {
                let pair = kernel.index_of(to)?;
                kernel.within(|| redirect::lead_in(index, pair, addresses))
            }
        }
    }

    /// Puts back what was before. Call it only if the interface is [`Standing::After`].
    pub(crate) fn undo(&self, kernel: &Kernel, index: u32) -> Result<(), Refusal> {
        match self {
            Self::Channels { kind, from, .. } => kernel.set_channels(index, *kind, *from),
            Self::Ring { setting: Ring::DataSplit, from, .. } => {
                // Most drivers choose off, which then reads the same as off by request.
                kernel.set_ring(index, Ring::DataSplit, Ring::AS_LIKED)?;
                match self.standing(kernel, index)? {
                    Standing::Before => Ok(()),
                    _ => kernel.set_ring(index, Ring::DataSplit, *from),
                }
            }
            Self::Ring { setting, from, .. } => kernel.set_ring(index, *setting, *from),
            Self::Feature { name, on } => kernel.set_feature(index, name, !on),
            Self::Table { even: true, .. } => kernel.set_table(index, &[]),
            Self::Table { from, .. } => kernel.set_table(index, from),
            Self::Context { context, .. } => kernel.remove_context(index, *context),
            Self::Rule { flow, queue, context } => {
                kernel.remove_rule(index, flow, Target::new(*queue, *context))
            }
            Self::Pair(pair) => pair.delete(kernel),
            Self::Redirect { .. } => kernel.within(|| redirect::detach(index)),
        }
    }

    /// Whether it is a rule that leads this flow to this queue.
    pub(crate) fn leads(&self, flow: &Flow, queue: u32) -> bool {
        let Self::Rule { flow: own, queue: to, context: None } = self else { return false };
        own.covers(flow) && *to == queue
    }

    /// Whether rules need it.
    pub(crate) fn is_for_rules(&self) -> bool {
        matches!(self, Self::Feature { name, on: true } if name == NTUPLE)
    }

    /// Checks whether the change has been made.
    pub(crate) fn standing(&self, kernel: &Kernel, index: u32) -> Result<Standing, Refusal> {
        Ok(match self {
            Self::Channels { kind, from, to } => {
                let channels = kernel.channels(index)?.filter(|channels| channels.kind == *kind);
                compare(channels.map(|channels| channels.now), *from, *to)
            }
            Self::Ring { setting, from, to } => {
                let rings = kernel.rings(index)?;
                compare_ring(*setting, rings.and_then(|rings| rings.value(*setting)), *from, *to)
            }
            Self::Feature { name, on } => {
                let active = kernel.features(index)?.active.contains(name);
                if active == *on { Standing::After } else { Standing::Before }
            }
            Self::Table { from, to, even: evenly } => {
                let table = kernel.tables(index)?.into_iter().find(|table| table.context == 0);
                let entries = table.map(|table| table.entries).unwrap_or_default();
                let queues = kernel.channels(index)?.map_or(1, |channels| channels.now);
                if entries == *to {
                    Standing::After
                } else if entries == *from || (*evenly && entries == even(entries.len(), queues)) {
                    Standing::Before
                } else {
                    Standing::Other(format!("leads to {}", list(&entries)))
                }
            }
            Self::Context { context, to } => {
                let tables = kernel.tables(index)?;
                match tables.iter().find(|table| table.context == *context) {
                    None => Standing::Before,
                    Some(table) if table.entries == *to => Standing::After,
                    Some(table) => Standing::Other(format!("leads to {}", list(&table.entries))),
                }
            }
            Self::Rule { flow, queue, context } => {
                let rules = kernel.rules(index)?.unwrap_or_default();
                match rules.find(flow, Target::new(*queue, *context)) {
                    Some(_) => Standing::After,
                    None => Standing::Before,
                }
            }
            Self::Pair(pair) => match pair.find(kernel)? {
                Some(_) => Standing::After,
                None => Standing::Before,
            },
            Self::Redirect { .. } => match kernel.within(|| redirect::is_attached(index))? {
                true => Standing::After,
                false => Standing::Before,
            },
        })
    }

    /// What the change is about, in a few words.
    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Channels { kind, .. } => format!("{} channels", kind.name()),
            Self::Ring { setting: Ring::DataSplit, .. } => "header/data split".to_owned(),
            Self::Ring { setting: Ring::SplitThreshold, .. } => "split threshold".to_owned(),
            Self::Ring { setting: Ring::BufferLength, .. } => "rx buffers".to_owned(),
            Self::Feature { name, .. } => name.clone(),
            Self::Table { .. } => "RSS".to_owned(),
            Self::Context { context, .. } => format!("RSS context {context}"),
            Self::Rule { flow, .. } => format!("rule for {flow}"),
            Self::Pair(pair) => format!("netkit pair {}", pair.name),
            Self::Redirect { to, .. } => format!("redirect to {to}"),
        }
    }
}

fn compare(now: Option<u32>, from: u32, to: u32) -> Standing {
    match now {
        Some(now) if now == to => Standing::After,
        Some(now) if now == from => Standing::Before,
        Some(now) => Standing::Other(format!("is {now}")),
        None => Standing::Other("is not told any more".to_owned()),
    }
}

fn compare_ring(setting: Ring, now: Option<u32>, from: u32, to: u32) -> Standing {
    // A driver may report its own choice as the value that it chose.
    let likes = setting == Ring::DataSplit && from == Ring::AS_LIKED;
    compare(now.map(|now| if likes && now != to { from } else { now }), from, to)
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SPLIT: [&str; 3] = ["as the driver likes", "off", "on"];
        let split = |value: &u32| SPLIT.get(*value as usize).copied().unwrap_or("unknown");
        write!(f, "{}: ", self.subject())?;
        match self {
            Self::Channels { from, to, .. } => write!(f, "{from} -> {to}"),
            Self::Ring { setting: Ring::DataSplit, from, to } => {
                write!(f, "{} -> {}", split(from), split(to))
            }
            Self::Ring { from, to, .. } => write!(f, "{from} -> {to} bytes"),
            Self::Feature { on: true, .. } => f.write_str("off -> on"),
            Self::Feature { on: false, .. } => f.write_str("on -> off"),
            Self::Table { from, to, .. } => {
                let count = |entries: &[u32]| entries.iter().collect::<BTreeSet<_>>().len();
                let gone: Vec<_> =
                    from.iter().copied().filter(|queue| !to.contains(queue)).collect();
                write!(
                    f,
                    "{} queues -> {}, so that {} only what rules send there; the host's own \
                     traffic moves to {}",
                    count(from),
                    count(to),
                    match count(&gone) {
                        1 => format!("{} gets", list(&gone)),
                        _ => format!("{} get", list(&gone)),
                    },
                    list(to)
                )
            }
            Self::Context { to, .. } => write!(f, "spreads over {}", list(to)),
            Self::Rule { context: Some(context), .. } => write!(f, "to RSS context {context}"),
            Self::Rule { queue, .. } => write!(f, "to queue {queue}"),
            Self::Pair(pair) => f.write_str(&pair.gives()),
            Self::Redirect { addresses, .. } => {
                let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "what arrives for {}", addresses.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ip;

    #[test]
    fn a_change_says_what_it_does() {
        let ring = |setting, from, to| Change::Ring { setting, from, to };
        let from = even(8, 4);
        let to = even(8, 3);
        let addresses = vec!["10.9.0.2".parse().expect("one"), "fd00:9::2".parse().expect("one")];
        let pair = serde_json::json!({ "pair": {
            "name": "handoff7", "address": "02:68:6f:00:00:07", "device": "nk0",
            "namespace": "/run/netns/blue", "inode": 5, "mtu": 1500, "queues": [2, 3],
            "addresses": addresses, "routes": ["10.1.0.0/16"],
        }});
        for (change, text) in [
            (
                serde_json::from_value(pair).expect("a change"),
                "netkit pair handoff7: nk0 in /run/netns/blue has queues 1, 2, leased from \
                 queues 2, 3, and 10.9.0.2, fd00:9::2",
            ),
            (
                Change::Redirect { to: "handoff7".to_owned(), addresses },
                "redirect to handoff7: what arrives for 10.9.0.2, fd00:9::2",
            ),
            (
                Change::Channels { kind: ChannelKind::Combined, from: 1, to: 2 },
                "combined channels: 1 -> 2",
            ),
            (ring(Ring::DataSplit, 1, 2), "header/data split: off -> on"),
            (ring(Ring::SplitThreshold, 256, 0), "split threshold: 256 -> 0 bytes"),
            (Change::Feature { name: "rx-gro-hw".to_owned(), on: true }, "rx-gro-hw: off -> on"),
            (
                Change::Table { from, to, even: true },
                "RSS: 4 queues -> 3, so that queue 3 gets only what rules send there; the host's \
                 own traffic moves to queues 0, 1, 2",
            ),
            (
                Change::Context { context: 1, to: vec![2, 3, 2, 3] },
                "RSS context 1: spreads over queues 2, 3",
            ),
            (
                Change::Rule { flow: Flow::port(Ip::V4, 80), queue: 3, context: None },
                "rule for TCP over IPv4 to port 80: to queue 3",
            ),
            (
                Change::Rule { flow: Flow::port(Ip::V6, 80), queue: 0, context: Some(1) },
                "rule for TCP over IPv6 to port 80: to RSS context 1",
            ),
        ] {
            assert_eq!(change.to_string(), text);
            let json = serde_json::to_string(&change).expect("serialises");
            assert_eq!(serde_json::from_str::<Change>(&json).expect("reads"), change, "{json}");
        }
    }

    #[test]
    fn what_somebody_else_set_is_neither() {
        assert_eq!(compare(Some(1), 1, 2), Standing::Before);
        assert_eq!(compare(Some(2), 1, 2), Standing::After);
        assert_eq!(compare(Some(3), 1, 2), Standing::Other("is 3".to_owned()));
        assert_eq!(compare(None, 1, 2), Standing::Other("is not told any more".to_owned()));
    }

    #[test]
    fn what_a_driver_likes_is_as_before_whatever_it_is() {
        for now in [0, 1] {
            assert_eq!(compare_ring(Ring::DataSplit, Some(now), 0, 2), Standing::Before);
        }
        assert_eq!(compare_ring(Ring::DataSplit, Some(2), 0, 2), Standing::After);
        let other = compare_ring(Ring::BufferLength, Some(1), 0, 2);
        assert_eq!(other, Standing::Other("is 1".to_owned()));
    }
}
