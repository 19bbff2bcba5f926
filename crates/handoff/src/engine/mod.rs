//! What is done with the records, by one file for each mechanism.
//!
//! A send goes [`order`] (when it may start) -> one of [`uring_zc`], [`msg_zerocopy`], [`copy`] (how) ->
//! [`sending`] (how it ends); a [`lane`] has a way of its own. A receive goes [`receiving`] -> [`zcrx`],
//! [`mapped`] or [`multishot`], as what it draws on says; into a chosen buffer it is a [`transfer`], as reads and
//! writes of files are.

pub(crate) mod accepting;
pub(crate) mod copy;
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
pub(crate) mod receiving;
#[cfg_attr(
    not(feature = "ublk"),
    allow(dead_code, unreachable_pub, reason = "what only handles use, which are not there")
)]
pub(crate) mod requests;
pub(crate) mod sending;
pub(crate) mod transfer;
pub(crate) mod uring_zc;
pub(crate) mod zcrx;
