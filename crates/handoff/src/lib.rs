//! Zero-copy I/O on stock Linux kernels: buffers are lent and come back.
//!
//! A [`Buffer`], cut from a [`Region`], is moved into a send; [`Sent`] tells that the kernel took the
//! bytes, and [`OnLoan`] yields the buffer when the kernel let go of them, with what became of them:
//! whether they were copied, as the kernel reports it. Many sends can share one return ([`Group`]).
//!
//! Everything belongs to a [`Driver`], which is one thread's io_uring, or system calls and epoll
//! where there is none. Its futures run on [`Driver::block_on`], on an [`Executor`], or inside
//! tokio's current-thread runtime; a thread with a loop of its own calls [`Driver::turn`] and asks
//! the handles.
//!
//! ```no_run
//! use handoff::{Driver, Region};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = Driver::new()?;
//! let mut region = Region::anonymous(1 << 20)?;
//! driver.register(&region)?;
//! let socket = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
//! let mut buffer = region.take(1 << 16).unwrap();
//! buffer.fill(7);
//! let finished = driver.block_on(async { socket.send(buffer).unwrap().await })?;
//! println!("{} bytes sent, {}", finished.sent?, finished.receipt.outcome());
//! # Ok(()) }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod driver;
mod endpoint;
mod engine;
mod error;
mod executor;
mod file;
mod inflight;
mod lease;
mod outcome;
pub mod probe;
mod readiness;
mod receipt;
mod ring;
mod route;
mod sink;
mod socket;
mod source;
#[cfg(feature = "tokio")]
pub mod tokio;
mod view;

pub use driver::{Driver, DriverBuilder, RingUse, Wait};
pub use engine::Engine;
pub use engine::auto::Choice;
pub use engine::layout::MAX_HEADER;
pub use engine::receiving::ReceiveEngine;
pub use error::{Error, Result};
pub use executor::Executor;
pub use file::{File, Readiness, Transfer, Transferred};
pub use lease::{Lend, LendMut, Lendable, Memory, Refused, Returned};
pub use outcome::{Outcome, Tally};
pub use receipt::Receipt;
pub use route::{Carried, Route, RouteEngine, RouteSink, RouteSource};
pub use sink::group::{Group, GroupOnLoan};
pub use sink::lane::Lane;
pub use sink::socket::{Finished, Finishing, Message, OnLoan, Sending, Sent};
pub use socket::{SendStats, Socket};
pub use source::intake::Intake;
pub use source::kernel::{Fresh, Getting, KernelSource, Lease, LeaseMut, LendStats, Lender};
pub use source::memory::{Buffer, Pages, Region};
pub use source::pool::Pool;
pub use source::received::Received;
pub use source::request::{Request, RequestKind, RequestQueue};
pub use source::rx_binding::RxBinding;
pub use source::rx_queue::{RxQueue, RxStats};
pub use source::shared::{SharedBuffer, SharedRegion};
pub use source::socket::{NextSpan, Receiver};
pub use source::window::Window;
pub use view::View;
