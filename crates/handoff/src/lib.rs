//! Zero-copy I/O on stock Linux kernels: buffers are lent and come back.
//!
//! You move a [`Buffer`], cut from a [`Region`], into a send. [`Sent`] tells you that the kernel took the
//! bytes. [`OnLoan`] gives the buffer back when the kernel has let go of it, with a [`Receipt`]: whether the
//! bytes were copied, as the kernel reports it. Many sends can share one return ([`Group`]).
//!
//! Everything belongs to a [`Driver`]: one thread's io_uring, or system calls and epoll where there is none.
//! Its futures run on [`Driver::block_on`], on an [`Executor`], or inside tokio (`handoff::tokio`). A thread
//! with a loop of its own calls [`Driver::turn`] and asks the handles.
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
//! let finished = driver.block_on(async { socket.send(buffer).unwrap().await })??;
//! println!("{} bytes sent, {}", finished.sent?, finished.receipt.outcome());
//! # Ok(()) }
//! ```
//!
//! | you want to | begin with |
//! |---|---|
//! | send | [`Socket::send`], [`Socket::message`]; in bulk [`Lane`]; the same bytes to many sockets [`Frozen`] |
//! | receive into memory that the kernel or a NIC chooses | [`Socket::receive`] from a [`Pool`] or [`RxQueue`], [`Socket::receive_mapped`] by a [`Window`] |
//! | take received bytes to other threads | [`Span::into_send`] |
//! | receive into memory of a device or of another process | [`Driver::dma_buf_queue`] |
//! | receive into a buffer of yours | [`Socket::receive_exact`], [`Socket::receive_into`] |
//! | open, read and write files, sync them | [`Driver::open`], [`File`] |
//! | make, rename and remove files | [`Directory`] |
//! | carry all bytes of a file or stream on | [`Route`], [`Socket::send_file`] |
//! | connect and listen | [`Driver::connect`], [`Driver::listen`] |
//! | use Unix sockets, pass descriptors | [`Driver::connect_unix`], [`Driver::listen_unix`], [`Message::descriptors`], [`Socket::receive_message`] |
//! | have buffers that come back by themselves | [`BufferPool`] |
//! | lend memory of your own kind, such as an arena | [`IoBuf`], [`IoBufMut`] |
//! | give up in time | [`Driver::timeout`], [`Driver::cancel_after`] |
//! | make a request that is not here | [`Driver::raw_request`], [`Driver::ring_fd`] |
//! | know what was copied | [`Receipt`], [`Tally`], [`Receiver::tally`], [`Carried`] |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod core;
mod driver;
mod engine;
mod error;
mod executor;
mod file;
#[cfg(feature = "getbuf")]
mod getbuf;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod handle;
mod lease;
mod mechanism;
mod memory;
mod op;
mod outcome;
mod raw;
mod reactor;
mod receipt;
#[cfg(feature = "ublk")]
mod requests;
mod ring;
mod route;
mod sleep;
mod socket;
mod sync;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "tokio")]
pub mod tokio;
mod transfer;
mod unix;

pub use driver::builder::{DriverBuilder, RingUse};
pub use driver::{Driver, Wait};
pub use error::{Error, Result};
pub use executor::Executor;
pub use file::File;
pub use file::call::FileCall;
pub use file::directory::{Directory, Renaming};
pub use file::metadata::{Alignment, Metadata};
pub use file::open_options::OpenOptions;
pub use file::rw_flags::RwFlags;
pub use file::storage::{Advice, Allocation, WriteBack};
#[cfg(feature = "getbuf")]
pub use getbuf::{Fresh, GetBuf, GetBufStats, Getting, KernelSource};
pub use handle::Cancel;
pub use lease::{
    DATAGRAM_HEAD, Datagram, DmaBuf, DmaBufQueue, DmaBufSpan, ExportedRxQueue, Intake,
    MappedIntake, MappedSpan, Pool, RxBinding, RxGrowth, RxQueue, RxShortage, RxStats, SendSpan,
    Span, SpanRef, Window,
};
#[cfg(any(feature = "getbuf", feature = "ublk"))]
pub use lease::{Lease, LeaseMut};
#[cfg(feature = "ublk")]
pub use lease::{Request, RequestKind};
pub use mechanism::{Engine, ReceiveEngine};
pub use memory::{
    Append, Buffer, BufferPool, Frozen, GetBuffer, IoBuf, IoBufMut, Memory, Pages, Pinning, Region,
    SharedBuffer, SharedRegion, View, ViewMut,
};
pub use op::SendStats;
pub use op::chooser::Choice;
pub use op::layout::MAX_HEADER;
pub use op::loan::{Lendable, Payload, PayloadMut, Refused, Returned};
pub use outcome::{Outcome, Tally};
pub use raw::{RawCompletion, RawRequest};
pub use receipt::Receipt;
#[cfg(feature = "ublk")]
pub use requests::RequestQueue;
pub use route::{Carried, Route, RouteEngine, RouteSink, RouteSource};
pub use sleep::Sleep;
pub use socket::Socket;
pub use socket::connect::Connecting;
pub use socket::group::{Group, GroupOnLoan};
pub use socket::lane::Lane;
pub use socket::listen::{Accepting, Listener};
pub use socket::listeners::{Client, Listeners};
pub use socket::message::{ReceivedMessage, ReceivingMessage};
pub use socket::options::SocketOptions;
pub use socket::receive::{NextSpan, Receiver, SpansThere};
pub use socket::receive_dma_buf::{DmaBufReceiver, NextDmaBufSpan};
pub use socket::receive_mapped::{MappedReceiver, NextMappedSpan};
pub use socket::send::{Finished, Finishing, Message, OnLoan, Sending, Sent};
pub use socket::unix::{AcceptingUnix, UnixListener};
pub use transfer::{Readiness, Transfer, Transferred};
pub use unix::{Credentials, UnixAddress, UnixKind};

pub use self::core::LoanStats;
