//! The mechanisms, one file each: the only place that names a source and a sink.
//!
//! A send goes [`sending`] (what the operation is and how far it got) -> [`order`] (when it may
//! start) -> one of [`uring_zc`], [`msg_zerocopy`], [`copy`] (how), and [`auto`] decides which; a [`lane`]
//! has a way of its own. A receive goes [`receiving`] -> [`zcrx`], [`mapped`] or [`multishot`], as what it draws on says.

pub(crate) mod auto;
pub(crate) mod copy;
pub(crate) mod get_buf;
pub(crate) mod lane;
pub(crate) mod layout;
pub(crate) mod mapped;
pub(crate) mod msg_zerocopy;
pub(crate) mod multishot;
pub(crate) mod order;
pub(crate) mod receiving;
pub(crate) mod requests;
pub(crate) mod sending;
pub(crate) mod splice;
pub(crate) mod transfer;
pub(crate) mod uring_zc;
pub(crate) mod zcrx;

use std::fmt;

/// A way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The socket chooses per size, from what it sees of its own sends.
    Auto,
    /// `IORING_OP_SEND_ZC` and `IORING_OP_SENDMSG_ZC` (Linux 6.0 and 6.1).
    UringZc,
    /// `MSG_ZEROCOPY` with the socket's error queue (Linux 4.14; UDP from 5.0). The kernel numbers the
    /// sends of an open socket, whoever has descriptors of it: it is refused to a socket that has
    /// `SO_ZEROCOPY` set already, and nobody else may send so on it.
    MsgZerocopy,
    /// `sendmsg`: the kernel copies.
    Copy,
}

impl Engine {
    /// The name on command lines and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::UringZc => "uring-zc",
            Self::MsgZerocopy => "msg-zerocopy",
            Self::Copy => "copy",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
