//! Foreign memory that we hold for a while: chunks that sockets receive into, pages of the kernel, the
//! memory of block requests. Each part knows its owner, and goes back to it when dropped.

pub(crate) mod area;
pub(crate) mod arrivals;
pub(crate) mod datagram;
pub(crate) mod dma_buf;
pub(crate) mod dma_buf_queue;
#[cfg_attr(
    not(feature = "getbuf"),
    allow(dead_code, reason = "what only handles use, which are not there")
)]
pub(crate) mod getbuf_device;
pub(crate) mod intake;
#[cfg_attr(
    not(all(feature = "getbuf", feature = "ublk")),
    allow(dead_code, unreachable_pub, reason = "what only handles use, which are not there")
)]
pub(crate) mod kernel;
pub(crate) mod mapped_span;
#[cfg(all(test, handoff_loom))]
mod models;
pub(crate) mod pending;
pub(crate) mod pool;
pub(crate) mod received;
#[cfg_attr(
    not(feature = "ublk"),
    allow(dead_code, unreachable_pub, reason = "what only handles use, which are not there")
)]
pub(crate) mod request;
#[cfg_attr(
    not(feature = "ublk"),
    allow(dead_code, unreachable_pub, reason = "what only handles use, which are not there")
)]
pub(crate) mod request_queue;
pub(crate) mod returns;
pub(crate) mod rx_binding;
pub(crate) mod rx_memory;
pub(crate) mod rx_queue;
pub(crate) mod rx_shared;
pub(crate) mod rx_stats;
pub(crate) mod send_span;
pub(crate) mod span_ref;
pub(crate) mod wakes;
pub(crate) mod window;

pub(crate) use arrivals::Arrivals;
pub use datagram::{DATAGRAM_HEAD, Datagram};
pub use dma_buf::DmaBuf;
pub use dma_buf_queue::{DmaBufQueue, DmaBufSpan};
pub use intake::{Intake, MappedIntake};
pub(crate) use kernel::Bytes;
#[cfg(any(feature = "getbuf", feature = "ublk"))]
pub use kernel::{Lease, LeaseMut};
pub use mapped_span::MappedSpan;
pub(crate) use pending::{Mark, Pending, TagResult};
pub use pool::Pool;
pub use received::Span;
pub(crate) use received::Ticket;
#[cfg(feature = "ublk")]
pub use request::{Request, RequestKind};
pub use rx_binding::RxBinding;
pub use rx_memory::{RxGrowth, RxShortage};
pub use rx_queue::{ExportedRxQueue, RxQueue};
pub use rx_stats::RxStats;
pub use send_span::SendSpan;
pub use span_ref::SpanRef;
pub(crate) use wakes::Wakes;
pub use window::Window;
