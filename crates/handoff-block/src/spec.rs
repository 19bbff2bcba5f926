//! The specification of a device.

use std::fmt;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::str::FromStr;

use handoff_sys::ublk;
use serde::{Deserialize, Serialize};

/// The most pieces of memory of a lent buffer whose description the kernel keeps (`IO_CACHED_BVECS_SEGS`).
pub const SEGMENTS_KEPT: u16 = 32;

/// How the bytes of a device map to its files; each mapping is described in its module of
/// [`target`](crate::target).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nowhere.
    Null,
    /// In one file.
    Loop,
    /// In one file after the other.
    Linear,
    /// Chunk by chunk in each file in turn.
    Stripe,
    /// In each file.
    Mirror,
    /// By the user's own mapping.
    Policy,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 6] =
        [Self::Null, Self::Loop, Self::Linear, Self::Stripe, Self::Mirror, Self::Policy];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Loop => "loop",
            Self::Linear => "linear",
            Self::Stripe => "stripe",
            Self::Mirror => "mirror",
            Self::Policy => "policy",
        }
    }

    /// The chunk that suits it best where you have no reason for another.
    pub fn chunk(self) -> u64 {
        match self {
            // Two at most of the largest request by default: each costs a request to a leg.
            Self::Mirror => 1 << 20,
            _ => 64 << 10,
        }
    }

    /// Where the bytes are, for a list.
    pub fn about(self) -> &'static str {
        match self {
            Self::Null => "writes go nowhere, and reads are zeroes; for measuring",
            Self::Loop => "one file or block device",
            Self::Linear => "several, one after the other",
            Self::Stripe => "chunks dealt out to several in turn",
            Self::Mirror => {
                "the same bytes in each; one that fails is taken out and reported by show"
            }
            Self::Policy => {
                "where a BPF function of yours says (--policy); bpf/blk_policy.h has what it is asked"
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| {
            format!(
                "no target is called {text}: there are {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The loop is a BPF program in the kernel; buffers are lent.
    Bpf,
    /// The loop is in user space, with a command for each request; buffers are lent.
    UserAuto,
    /// The loop is in user space, with a command for many requests; buffers are lent.
    BatchAuto,
    /// The loop is in user space, and data passes through its memory.
    UserCopy,
}

impl Engine {
    /// All, best first.
    pub const ALL: [Self; 4] = [Self::Bpf, Self::UserAuto, Self::BatchAuto, Self::UserCopy];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::UserAuto => "user-auto",
            Self::BatchAuto => "batch-auto",
            Self::UserCopy => "user-copy",
        }
    }

    /// How it works and what it needs, for a list.
    pub fn about(self) -> &'static str {
        match self {
            Self::Bpf => "the loop is a BPF program in the kernel; tried on Linux 7.2",
            Self::UserAuto => "the loop is here, requests' memory is lent to it; needs Linux 6.16",
            Self::BatchAuto => "the same with a command for many requests; needs Linux 7.0",
            Self::UserCopy => "the driver copies data into our memory and out of it",
        }
    }

    /// Whether requests' buffers are lent to the ring.
    pub(crate) fn lends(self) -> bool {
        self != Self::UserCopy
    }

    /// The driver's flags of a device with this engine.
    pub(crate) fn flags(self) -> u64 {
        match self {
            Self::Bpf | Self::UserAuto => ublk::F_AUTO_BUF_REG,
            Self::BatchAuto => ublk::F_AUTO_BUF_REG | ublk::F_BATCH_IO,
            Self::UserCopy => 0,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|engine| engine.name() == text);
        named.ok_or_else(|| {
            format!(
                "no engine is called {text}: there are {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// A better engine, and why it was not taken.
///
/// [`Server::passed_over`](crate::Server::passed_over) returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Which one.
    pub engine: Engine,
    /// Why not.
    pub reason: String,
}

/// How a mirror starts whose legs have records of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MirrorStart {
    /// As the records say. A leg that may have data that the others lack must be there.
    #[default]
    AsRecorded,
    /// Also without such a leg. What only that leg has is lost.
    Degraded,
    /// By the data of this leg, whatever the others say.
    Trust(PathBuf),
    /// Writes the records, which take some room at the end of each leg.
    Create {
        /// If the legs differ, copies the first one to the others. Otherwise they must be the same.
        keep_first: bool,
    },
}

/// A device as it was asked for. It is kept beside the device for later servers.
///
/// ```
/// use handoff_block::{Kind, Spec};
///
/// let stripe = Spec {
///     target: Kind::Stripe,
///     files: vec!["a.img".into(), "b.img".into()],
///     chunk: 128 << 10,
///     direct: true,
///     queues: 2,
///     ..Spec::default()
/// };
/// assert_eq!((stripe.block_size, stripe.depth), (512, 64));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The mapping.
    pub target: Kind,
    /// Files or block devices, in the order of the mapping.
    pub files: Vec<PathBuf>,
    /// Bytes of a device whose files do not give the size: one without files, or with a policy. Default:
    /// those of all its files.
    pub size: Option<u64>,
    /// The object with the policy.
    pub policy: Option<PathBuf>,
    /// To how many places a policy's device writes.
    pub copies: u32,
    /// The number; the driver chooses by default.
    pub id: Option<u32>,
    /// Logical block size in bytes, 512 or 4096.
    pub block_size: u32,
    /// Bytes of a stripe's chunk, and of the region that a mirror reads from one leg ([`Kind::chunk`]).
    pub chunk: u64,
    /// Whether the files are opened with O_DIRECT. Otherwise data is copied into and out of the page cache.
    pub direct: bool,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Queues, each with a thread.
    pub queues: u16,
    /// Requests under way in each queue.
    pub depth: u16,
    /// Bytes of the largest request.
    pub max_request: u32,
    /// The most pieces of memory of a request, where memory is lent. A server takes memory for each request of
    /// more than [`SEGMENTS_KEPT`](crate::SEGMENTS_KEPT).
    #[serde(default = "any")]
    pub max_segments: u16,
    /// The engine; the best possible one by default.
    pub engine: Option<Engine>,
    /// How a mirror starts whose legs have records of it; `None` makes one that forgets which leg is right when the
    /// device ends.
    #[serde(default)]
    pub record: Option<MirrorStart>,
    /// Whether the legs of a mirror are compared first, which must be the same.
    #[serde(default)]
    pub check: bool,
}

/// Devices made before there was a limit have as many segments as their files take.
fn any() -> u16 {
    u16::MAX
}

impl Spec {
    /// Whether its backings are all disks or partitions. Writes to a file, or through the page cache, take
    /// kernel memory on the way.
    pub(crate) fn is_of_disks(&self) -> bool {
        let is_disk = |file: &PathBuf| {
            std::fs::metadata(file).is_ok_and(|metadata| metadata.file_type().is_block_device())
        };
        // A leg that was out from the start has no name.
        let mut named = self.files.iter().filter(|file| !file.as_os_str().is_empty());
        !self.files.is_empty() && named.all(is_disk)
    }
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            target: Kind::Null,
            files: Vec::new(),
            size: None,
            policy: None,
            copies: 1,
            id: None,
            block_size: 512,
            chunk: 64 << 10,
            direct: false,
            read_only: false,
            queues: 1,
            depth: 64,
            max_request: 512 << 10,
            max_segments: SEGMENTS_KEPT,
            engine: None,
            record: None,
            check: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
            assert_eq!(serde_json::to_value(engine).unwrap(), engine.name());
        }
    }
}
