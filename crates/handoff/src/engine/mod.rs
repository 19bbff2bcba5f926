//! The behaviour of operations: one file for each mechanism.
//!
//! A send passes [`order`] (when it may start), which asks one of [`uring_zc`], [`msg_zerocopy`], [`copy`] to send,
//! and takes its outcome to [`sending`] (how it ends); a [`lane`] has its own way. A receive passes [`receiving`], then [`zcrx`],
//! [`mapped`] or [`multishot`], depending on its intake; a receive into a chosen buffer is a [`transfer`], like
//! reads and writes of files; what moves no bytes of a file is a [`file_call`]. Requests that the program makes itself are [`raw`].

pub(crate) mod accepting;
pub(crate) mod copy;
pub(crate) mod file_call;
#[cfg_attr(
    not(feature = "getbuf"),
    allow(dead_code, unreachable_pub, reason = "what only handles use, which are not there")
)]
pub(crate) mod get_buf;
pub(crate) mod lane;
pub(crate) mod mapped;
pub(crate) mod msg_zerocopy;
pub(crate) mod multishot;
pub(crate) mod order;
pub(crate) mod raw;
pub(crate) mod receiving;
#[cfg_attr(
    not(feature = "ublk"),
    allow(dead_code, unreachable_pub, reason = "what only handles use, which are not there")
)]
pub(crate) mod requests;
pub(crate) mod sending;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod transfer;
pub(crate) mod uring_zc;
pub(crate) mod zcrx;
