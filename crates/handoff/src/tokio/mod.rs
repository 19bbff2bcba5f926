//! Handoff inside tokio: servers on driver threads, sockets with tokio's traits, and handles for any
//! thread.
//!
//! | your program | what to use |
//! |---|---|
//! | runs on one thread | [`run`] |
//! | runs the same server on several threads | [`per_core`] |
//! | runs on tokio's multi-thread runtime | [`DriverThreads`], whose futures are `Send` |
//! | has its own current-thread runtime and `LocalSet` | [`drive`] |
//!
//! A [`Driver`](crate::Driver) and all that it makes (sockets, receivers, spans, the futures of sends) stay on
//! their thread. Start tasks there by `tokio::task::spawn_local`, since `tokio::spawn` wants futures that are
//! `Send`: `run`, `per_core` and `DriverThreads` set up the `LocalSet` for it. Memory crosses threads: buffers,
//! frozen buffers, pools of buffers and `Bytes` are `Send`.
//!
//! [`TcpStream`], [`UdpSocket`], [`UnixStream`] and [`UnixDatagram`] are for code that wants `AsyncRead`, `AsyncWrite`, `Stream` or `Sink`; each says
//! what it copies. You may drop their futures at any time: no byte is lost.
//!
//! Minimum kernel: as the driver's. Capability: none.

#[cfg(feature = "tls")]
mod accepted;
mod buffers;
mod call;
mod datagrams;
mod drive;
mod halves;
mod ready;
mod remote;
mod run;
mod sink;
mod stream;
mod tcp;
mod threads;
#[cfg(feature = "tls")]
mod tls;
mod udp;
mod unix;

pub use buffers::{Buffers, Datagrams};
pub use drive::drive;
pub use halves::{OwnedReadHalf, OwnedWriteHalf};
pub use remote::{Crosses, Remote, RemoteBuffers, Reply};
pub use run::{per_core, per_core_with, run, run_with};
pub use sink::{Outgoing, SendSink};
pub use tcp::{OtherSocket, ReuniteError, TcpListener, TcpStream};
pub use threads::DriverThreads;
pub use udp::UdpSocket;
pub use unix::{UnixDatagram, UnixListener, UnixStream};
