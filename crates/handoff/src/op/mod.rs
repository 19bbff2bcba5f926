//! The records of operations, one file for each kind. They are data, and say what state they are in;
//! engines act on them.

mod accept;
pub(crate) mod ancillary;
pub(crate) mod chooser;
#[cfg(feature = "tls")]
pub(crate) mod cipher;
mod failed;
mod file_call;
mod flow;
#[cfg_attr(
    not(feature = "getbuf"),
    allow(dead_code, unreachable_pub, reason = "what only handles use, which are not there")
)]
mod get;
pub(crate) mod group;
pub(crate) mod lane;
pub(crate) mod layout;
mod lender;
mod lent;
pub(crate) mod loan;
mod outstanding;
mod raw;
mod receive;
mod reception;
mod records;
mod send;
mod socket_state;
mod transfer;
mod waiter;

pub(crate) use accept::{AcceptOp, AcceptState};
pub(crate) use ancillary::Beside;
pub(crate) use file_call::{ASKED, Answer, FileCall, FileCallOp, How, Name, Rest};
pub(crate) use flow::Flow;
pub(crate) use get::{GetOp, GetState};
pub(crate) use layout::Layout;
pub use lender::SendStats;
pub(crate) use lender::{Account, Kept, Lender};
pub(crate) use lent::{BackTo, Claim};
pub(crate) use loan::Loan;
pub(crate) use raw::{RawOp, RawState};
pub(crate) use receive::{End, Mapped, ReceiveOp, ReceiveState, ReceivesFrom};
pub(crate) use records::{Kind, Op, Records};
pub(crate) use send::{InChain, SendOp, SendState};
pub(crate) use socket_state::{SocketKind, SocketShared, reset};
pub(crate) use transfer::{Attached, Direction, TransferOp, TransferState};
pub(crate) use waiter::{Waiter, Waiting};
