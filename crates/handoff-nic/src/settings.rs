//! The settings that ethtool changes over netlink: channels, rings, features and the RSS tables.
//!
//! Minimum kernel: 5.8 to read, 6.17 to set the RSS table. Setting needs CAP_NET_ADMIN.

use std::collections::BTreeSet;

use handoff_sys::ethtool::{self as abi, Features};
use handoff_sys::netlink::{Attributes, Refusal};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::kernel::{Kernel, about};

/// How queues are counted: most drivers pair each rx queue with a tx queue, some do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelKind {
    /// Each has an rx and a tx queue.
    Combined,
    /// Rx queues only.
    Rx,
}

impl ChannelKind {
    /// Its name in the ethtool command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Rx => "rx",
        }
    }
}

/// The rx queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// How they are counted.
    pub kind: ChannelKind,
    /// How many exist.
    pub now: u32,
    /// How many the driver can have.
    pub max: u32,
}

/// The rx rings of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rings {
    /// Entries of each ring.
    pub entries: Option<u32>,
    /// The most that each can have.
    pub max: Option<u32>,
    /// Whether headers and payload go to different buffers: 0 as the driver chooses, 1 no, 2 yes; `None`
    /// where the driver has no such setting.
    pub data_split: Option<u32>,
    /// Bytes of payload up to which a packet is not split.
    pub split_threshold: Option<u32>,
    /// Bytes of a buffer, where the driver can set it.
    pub buffer_length: Option<u32>,
}

impl Rings {
    /// Whether headers are split from payload.
    pub fn splits(&self) -> bool {
        self.data_split == Some(Ring::SPLIT)
    }

    pub(crate) fn value(&self, ring: Ring) -> Option<u32> {
        match ring {
            Ring::DataSplit => self.data_split,
            Ring::SplitThreshold => self.split_threshold,
            Ring::BufferLength => self.buffer_length,
        }
    }
}

/// One setting of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ring {
    /// See [`Rings::data_split`].
    DataSplit,
    /// See [`Rings::split_threshold`].
    SplitThreshold,
    /// See [`Rings::buffer_length`].
    BufferLength,
}

impl Ring {
    pub(crate) const AS_LIKED: u32 = 0;
    pub(crate) const SPLIT: u32 = 2;
}

/// Feature: rules choose queues.
pub(crate) const NTUPLE: &str = "rx-ntuple-filter";
/// Feature: the card joins packets of a connection.
pub(crate) const HARDWARE_GRO: &str = "rx-gro-hw";
/// Feature: the card reports the hash of a packet.
pub(crate) const HASH: &str = "rx-hashing";

/// One RSS table: the hash of a packet chooses an entry, and the entry names the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Number of the context; 0 is the one for packets that no rule matches.
    pub context: u32,
    /// Queues, by entry.
    pub entries: Vec<u32>,
}

impl Table {
    /// The queues that it sends to.
    pub fn queues(&self) -> BTreeSet<u32> {
        self.entries.iter().copied().collect()
    }
}

/// The even spread that the kernel and drivers use unless told otherwise.
pub(crate) fn even(entries: usize, queues: u32) -> Vec<u32> {
    (0..entries as u32).map(|entry| entry % queues.max(1)).collect()
}

impl Kernel {
    /// The rx queues; `None` where the driver does not tell.
    pub(crate) fn channels(&self, index: u32) -> Result<Option<Channels>, Refusal> {
        let answer = one(self.ethtool(abi::MSG_CHANNELS_GET, about(index))?);
        Ok(answer.and_then(|answer| {
            [
                (
                    ChannelKind::Combined,
                    abi::A_CHANNELS_COMBINED_MAX,
                    abi::A_CHANNELS_COMBINED_COUNT,
                ),
                (ChannelKind::Rx, abi::A_CHANNELS_RX_MAX, abi::A_CHANNELS_RX_COUNT),
            ]
            .into_iter()
            .filter_map(|(kind, max, now)| {
                let (now, max) = (answer.number(now)?, answer.number(max)?);
                Some(Channels { kind, now, max })
            })
            .find(|channels| channels.now > 0)
        }))
    }

    pub(crate) fn set_channels(
        &self,
        index: u32,
        kind: ChannelKind,
        count: u32,
    ) -> Result<(), Refusal> {
        let attribute = match kind {
            ChannelKind::Combined => abi::A_CHANNELS_COMBINED_COUNT,
            ChannelKind::Rx => abi::A_CHANNELS_RX_COUNT,
        };
        let asked = about(index).with(attribute, &count.to_ne_bytes());
        done(self.ethtool(abi::MSG_CHANNELS_SET, asked)?)
    }

    /// The rings; `None` where the driver does not tell.
    pub(crate) fn rings(&self, index: u32) -> Result<Option<Rings>, Refusal> {
        let answer = one(self.ethtool(abi::MSG_RINGS_GET, about(index))?);
        Ok(answer.map(|answer| Rings {
            entries: answer.number(abi::A_RINGS_RX),
            max: answer.number(abi::A_RINGS_RX_MAX),
            data_split: answer.number(abi::A_RINGS_TCP_DATA_SPLIT),
            split_threshold: answer.number(abi::A_RINGS_HDS_THRESH),
            buffer_length: answer.number(abi::A_RINGS_RX_BUF_LEN),
        }))
    }

    pub(crate) fn set_ring(&self, index: u32, ring: Ring, value: u32) -> Result<(), Refusal> {
        let asked = match ring {
            Ring::DataSplit => about(index).with(abi::A_RINGS_TCP_DATA_SPLIT, &[value as u8]),
            Ring::SplitThreshold => {
                about(index).with(abi::A_RINGS_HDS_THRESH, &value.to_ne_bytes())
            }
            Ring::BufferLength => about(index).with(abi::A_RINGS_RX_BUF_LEN, &value.to_ne_bytes()),
        };
        done(self.ethtool(abi::MSG_RINGS_SET, asked)?)
    }

    pub(crate) fn features(&self, index: u32) -> Result<Features, Refusal> {
        let answer = one(self.ethtool(abi::MSG_FEATURES_GET, about(index))?);
        Ok(answer.as_ref().map(Features::of).unwrap_or_default())
    }

    pub(crate) fn set_feature(&self, index: u32, name: &str, on: bool) -> Result<(), Refusal> {
        let bit = Attributes::new().text(abi::A_BITSET_BIT_NAME, name);
        let bit = if on { bit.with(abi::A_BITSET_BIT_VALUE, &[]) } else { bit };
        let bits = Attributes::new().nest(abi::A_BITSET_BITS_BIT, &bit);
        let wanted = Attributes::new().nest(abi::A_BITSET_BITS, &bits);
        let asked = about(index).nest(abi::A_FEATURES_WANTED, &wanted);
        done(self.ethtool(abi::MSG_FEATURES_SET, asked)?)
    }

    /// The RSS tables, context 0 first; empty where the driver has no RSS.
    pub(crate) fn tables(&self, index: u32) -> Result<Vec<Table>, Refusal> {
        let answers = self.ethtool_dump(abi::MSG_RSS_GET, about(index))?.unwrap_or_default();
        let tables = answers.iter().filter_map(|answer| {
            let device = answer.inner(abi::A_HEADER).number(abi::A_HEADER_DEV_INDEX)?;
            let entries: Vec<u32> = answer
                .get(abi::A_RSS_INDIR)?
                .chunks_exact(4)
                .filter_map(|entry| entry.try_into().ok().map(u32::from_ne_bytes))
                .collect();
            let context = answer.number(abi::A_RSS_CONTEXT).unwrap_or(0);
            (device == index && !entries.is_empty()).then_some(Table { context, entries })
        });
        let mut tables: Vec<_> = tables.collect();
        tables.sort_by_key(|table| table.context);
        Ok(tables)
    }

    /// Whether the driver may have contexts beside the one for packets that no rule matches.
    pub(crate) fn may_have_contexts(&self, index: u32) -> bool {
        /// A driver with contexts has none of this number.
        const NOBODYS: u32 = u32::MAX;
        let asked = about(index).with(abi::A_RSS_CONTEXT, &NOBODYS.to_ne_bytes());
        may_have_contexts(self.ethtool(abi::MSG_RSS_GET, asked))
    }

    /// Sets the table of context 0; with an empty one the driver spreads evenly again.
    pub(crate) fn set_table(&self, index: u32, entries: &[u32]) -> Result<(), Refusal> {
        done(self.ethtool(abi::MSG_RSS_SET, about(index).with(abi::A_RSS_INDIR, &bytes(entries)))?)
    }

    /// Makes a context of this number, which must be free.
    pub(crate) fn make_context(
        &self,
        index: u32,
        context: u32,
        entries: &[u32],
    ) -> Result<(), Refusal> {
        let asked = about(index)
            .with(abi::A_RSS_CONTEXT, &context.to_ne_bytes())
            .with(abi::A_RSS_INDIR, &bytes(entries));
        done(self.ethtool(abi::MSG_RSS_CREATE, asked)?)
    }

    pub(crate) fn remove_context(&self, index: u32, context: u32) -> Result<(), Refusal> {
        let asked = about(index).with(abi::A_RSS_CONTEXT, &context.to_ne_bytes());
        done(self.ethtool(abi::MSG_RSS_DELETE, asked)?)
    }
}

/// What the answer to a question about a nonexistent context says about the driver. On kernels before 6.12 the
/// driver answers, with an error of its own choice.
fn may_have_contexts(answer: Result<Option<Vec<Attributes>>, Refusal>) -> bool {
    answer.map_or(true, |answers| answers.is_some())
}

fn bytes(entries: &[u32]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_ne_bytes()).collect()
}

fn one(answers: Option<Vec<Attributes>>) -> Option<Attributes> {
    answers?.into_iter().next()
}

/// An error if the driver or the kernel lacks the command.
fn done(answers: Option<Vec<Attributes>>) -> Result<(), Refusal> {
    match answers {
        Some(_) => Ok(()),
        None => Err(Refusal {
            error: rustix::io::Errno::OPNOTSUPP.into(),
            message: Some("the driver, or this kernel, has no such setting".to_owned()),
        }),
    }
}

/// For `map_err`: which setting of which interface could not be read.
pub(crate) fn reading(what: &str, name: &str) -> impl FnOnce(Refusal) -> Error {
    Error::doing(format!("reading the {what} of {name}"))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_error_of_an_older_driver_is_no_answer() {
        let refused = |errno: Errno| may_have_contexts(Err(std::io::Error::from(errno).into()));
        for errno in [Errno::NOENT, Errno::INVAL, Errno::RANGE] {
            assert!(refused(errno), "{errno}");
        }
        assert!(!may_have_contexts(Ok(None)));
    }
}
