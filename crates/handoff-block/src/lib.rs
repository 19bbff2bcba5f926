//! Block devices in user space whose data need not pass through it: ublk devices made of files and
//! other block devices.
//!
//! ```no_run
//! use handoff_block::{Kind, Server, Spec, Start};
//!
//! # fn main() -> Result<(), handoff_block::Error> {
//! let spec = Spec { target: Kind::Linear, files: vec!["a.img".into(), "b.img".into()], ..Spec::default() };
//! let server = Server::start(&spec, Start::New)?;
//! println!("/dev/ublkb{} by {}", server.id(), server.engine());
//! server.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! Contracts:
//! - one piece of C, `bpf/blk_request.h`, decides in every engine how a request is mapped; engines
//!   ([`Engine`]) only carry requests, completions and results;
//! - any failure after the driver made the device removes it; a device being recovered is left as it was
//!   found;
//! - an engine that is not the best one is never taken silently: [`Server::passed_over`] has the reasons;
//! - the state of a device ([`state`]) outlives its server, so that the next server continues with it.
//!
//! [`OwnDevice`] is a device without any of that: the library's driver takes its requests.
//!
//! Minimum kernel: 6.6 for copying, 6.16 for lent buffers (`UBLK_F_AUTO_BUF_REG`), 7.0 for batched
//! commands (`UBLK_F_BATCH_IO`); the loop in the kernel (`io_uring_bpf_ops`) was tried on 7.2.
//! Capability: CAP_SYS_ADMIN. The module `ublk_drv`.
//! Return signal of a lent request buffer: the commit of its result.
//!
//! The `libublk` crate has neither the loop in the kernel nor the shared C, and one way for all engines is
//! shorter than two. So this crate sends the commands itself.

mod backing;
mod bytes;
mod claims;
mod control;
mod counters;
mod device;
mod engine;
mod error;
mod exchange;
mod existing;
mod files;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod identity;
pub mod image_lock;
mod libbpf_log;
mod limits;
mod members;
mod mirror;
mod object_file;
mod own_device;
mod pins;
pub mod policy;
mod private;
mod queue;
mod ranges;
mod record;
mod request;
mod ring;
mod server;
mod spec;
pub mod state;
pub mod target;
mod threads;

pub use control::{CONTROL, Control, DeviceState, Found};
pub use device::remove;
pub use error::{Error, ErrorKind};
pub use files::{Files, Inherited};
pub use limits::Limits;
pub use mirror::assembly::mirror_of;
pub use own_device::OwnDevice;
pub use server::{Prepared, Server, Start};
pub use spec::{Engine, Kind, MirrorStart, PassedOver, SEGMENTS_KEPT, Spec};
