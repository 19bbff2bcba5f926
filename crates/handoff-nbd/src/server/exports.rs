//! The table of exports, which the caller has.

use crate::target::BlockSizes;
use crate::wire::{OptionReply, TransmissionFlags};

/// An export in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name, at most 4,096 bytes.
    pub name: String,
    /// A text for people; empty if there is none.
    pub description: String,
}

/// What a client learns of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name in the table, which is another one than the client's for the default export.
    pub name: String,
    /// A text for people; empty if there is none.
    pub description: String,
    /// Bytes of it.
    pub size: u64,
    /// What it can do. Negotiation sets [`TransmissionFlags::HAS_FLAGS`], and [`TransmissionFlags::SEND_DF`] where
    /// replies come in chunks, and clears what it does not know.
    pub flags: TransmissionFlags,
    /// Sizes that requests must keep to.
    pub block: BlockSizes,
    /// Whether clients that have not asked for the sizes are refused.
    pub needs_block_sizes: bool,
    /// Whether it can tell which extents are allocated.
    pub has_allocation: bool,
}

/// Why a client does not get an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is none of that name.
    Unknown,
    /// This client may not have it, or not now; with the reason.
    Policy(String),
    /// TLS must come first.
    TlsRequired,
    /// The server is about to end.
    Shutdown,
}

impl Refused {
    pub(super) fn reply(&self) -> (OptionReply, &str) {
        match self {
            Self::Unknown => (OptionReply::ErrUnknown, "there is no export of this name"),
            Self::Policy(reason) => (OptionReply::ErrPolicy, reason),
            Self::TlsRequired => (OptionReply::ErrTlsReqd, "this export needs TLS"),
            Self::Shutdown => (OptionReply::ErrShutdown, "the server is about to end"),
        }
    }
}

/// The table of exports. It may be another one once TLS runs: each call of a negotiation takes it anew.
pub trait Exports {
    /// Those that a client may know of.
    fn list(&self) -> Vec<Listed>;

    /// The export of a name; the empty name is that of the default one.
    ///
    /// # Errors
    ///
    /// Why the client does not get it.
    fn find(&self, name: &str) -> Result<Export, Refused>;
}
