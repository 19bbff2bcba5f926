//! The names of `tokio::net` for sockets of `handoff::tokio`, whose functions take a driver: here it is that of the thread.
//! A listener is asked by one at a time, and here by all that share it.

use std::cell::RefCell;

use handoff::Driver;
pub use tokio::pin;

thread_local! {
    static DRIVER: RefCell<Option<Driver>> = const { RefCell::new(None) };
}

fn driver() -> Driver {
    DRIVER.with_borrow(|driver| driver.clone().expect("a test runs here"))
}

/// What `#[tokio::test]` asks for.
pub mod runtime {
    use std::future::Future;
    use std::io;

    pub struct Builder;

    impl Builder {
        pub fn new_current_thread() -> Self {
            Self
        }

        pub fn enable_all(self) -> Self {
            self
        }

        pub fn build(self) -> io::Result<Self> {
            Ok(self)
        }

        /// With a ring, unless `WITHOUT_RING` is set.
        pub fn block_on<F: Future>(self, test: F) -> F::Output {
            let ring = match std::env::var_os("WITHOUT_RING") {
                Some(_) => handoff::RingUse::Avoid,
                None => handoff::RingUse::Require,
            };
            let over = handoff::tokio::run_with(handoff::Driver::builder().ring(ring), |driver| {
                super::DRIVER.set(Some(driver));
                test
            });
            super::DRIVER.take();
            over.expect("the driver works")
        }
    }
}

pub mod net {
    use std::io::{Error, ErrorKind, Result};
    use std::net::SocketAddr;
    use std::ops::{Deref, DerefMut};
    use std::os::unix::net::SocketAddr as StdAddress;
    use std::path::Path;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use bytes::BufMut;
    use handoff::UnixAddress;
    use handoff::tokio as ours;
    use socket2::SockRef;
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio::net::{ToSocketAddrs, lookup_host};
    use tokio::sync::Mutex;
    use tokio_stream::Stream as _;

    use super::driver;

    /// The first address that works.
    async fn each<T>(
        addresses: impl ToSocketAddrs,
        mut work: impl AsyncFnMut(SocketAddr) -> handoff::Result<T>,
    ) -> Result<T> {
        let mut last = Error::from(ErrorKind::InvalidInput);
        for address in lookup_host(addresses).await? {
            match work(address).await {
                Ok(done) => return Ok(done),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    macro_rules! stands_for {
        ($name:ident) => {
            #[derive(Debug)]
            pub struct $name(ours::$name);

            impl Deref for $name {
                type Target = ours::$name;

                fn deref(&self) -> &ours::$name {
                    &self.0
                }
            }

            impl DerefMut for $name {
                fn deref_mut(&mut self) -> &mut ours::$name {
                    &mut self.0
                }
            }
        };
    }

    macro_rules! is_a_stream {
        ($name:ident) => {
            stands_for!($name);

            impl $name {
                pub fn into_split(self) -> (ours::OwnedReadHalf, ours::OwnedWriteHalf) {
                    self.0.into_split()
                }
            }

            impl AsyncRead for $name {
                fn poll_read(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    into: &mut ReadBuf<'_>,
                ) -> Poll<Result<()>> {
                    Pin::new(&mut self.0).poll_read(context, into)
                }
            }

            impl AsyncWrite for $name {
                fn poll_write(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    bytes: &[u8],
                ) -> Poll<Result<usize>> {
                    Pin::new(&mut self.0).poll_write(context, bytes)
                }

                fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
                    Pin::new(&mut self.0).poll_flush(context)
                }

                fn poll_shutdown(
                    mut self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                ) -> Poll<Result<()>> {
                    Pin::new(&mut self.0).poll_shutdown(context)
                }
            }
        };
    }

    is_a_stream!(TcpStream);
    is_a_stream!(UnixStream);
    stands_for!(UdpSocket);
    stands_for!(UnixDatagram);

    /// What is accepted waits here while nobody holds it.
    macro_rules! listens {
        ($name:ident, $stream:ident, $peer:ty) => {
            #[derive(Debug)]
            pub struct $name(Mutex<ours::$name>, $peer);

            impl $name {
                pub async fn accept(&self) -> Result<($stream, $peer)> {
                    let (stream, peer) = self.0.lock().await.accept().await?;
                    Ok(($stream(stream), peer))
                }

                pub fn local_addr(&self) -> Result<$peer> {
                    Ok(self.1.clone())
                }
            }
        };
    }

    listens!(TcpListener, TcpStream, SocketAddr);
    listens!(UnixListener, UnixStream, UnixAddress);

    impl TcpListener {
        pub async fn bind(addresses: impl ToSocketAddrs) -> Result<Self> {
            let bound = each(addresses, async |at| ours::TcpListener::bind(&driver(), at)).await?;
            let at = bound.local_addr()?;
            Ok(Self(Mutex::new(bound), at))
        }

        pub fn poll_accept(
            &self,
            context: &mut Context<'_>,
        ) -> Poll<Result<(TcpStream, SocketAddr)>> {
            let mut only = self.0.try_lock().expect("nobody else asks");
            let accepted = Pin::new(&mut *only).poll_next(context);
            let accepted = accepted.map(|accepted| accepted.expect("a listener has no end"));
            accepted.map_ok(|(stream, peer)| (TcpStream(stream), peer)).map_err(Error::from)
        }
    }

    /// Options are set by the descriptor.
    impl TcpStream {
        pub fn linger(&self) -> Result<Option<Duration>> {
            SockRef::from(&self.0).linger()
        }

        pub fn set_linger(&self, time: Option<Duration>) -> Result<()> {
            SockRef::from(&self.0).set_linger(time)
        }

        pub fn set_zero_linger(&self) -> Result<()> {
            self.set_linger(Some(Duration::ZERO))
        }
    }

    impl TcpStream {
        pub async fn connect(addresses: impl ToSocketAddrs) -> Result<Self> {
            each(addresses, async |to| ours::TcpStream::connect(&driver(), to).await).await.map(Self)
        }
    }

    impl TryFrom<std::net::TcpStream> for TcpStream {
        type Error = Error;

        fn try_from(stream: std::net::TcpStream) -> Result<Self> {
            let stream = ours::TcpStream::try_from(driver().socket(stream)?);
            Ok(Self(stream.map_err(handoff::Error::from)?))
        }
    }

    impl UdpSocket {
        pub async fn bind(addresses: impl ToSocketAddrs) -> Result<Self> {
            each(addresses, async |at| ours::UdpSocket::bind(&driver(), at)).await.map(Self)
        }

        pub async fn connect(&self, addresses: impl ToSocketAddrs) -> Result<()> {
            each(addresses, async |to| self.0.connect(to)).await
        }

        pub async fn send_to(&self, bytes: &[u8], to: impl ToSocketAddrs) -> Result<usize> {
            let to = lookup_host(to).await?.next().ok_or(ErrorKind::InvalidInput)?;
            self.0.send_to(bytes, to).await
        }
    }

    impl UnixListener {
        pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
            let bound = ours::UnixListener::bind(&driver(), path)?;
            let at = bound.local_addr()?;
            Ok(Self(Mutex::new(bound), at))
        }
    }

    impl UnixStream {
        pub async fn connect(path: impl AsRef<Path>) -> Result<Self> {
            Ok(Self(ours::UnixStream::connect(&driver(), path).await?))
        }

        pub fn pair() -> Result<(Self, Self)> {
            let (one, other) = ours::UnixStream::pair(&driver())?;
            Ok((Self(one), Self(other)))
        }

        pub fn peer_cred(&self) -> Result<Peer> {
            let handoff::Credentials { pid, uid, gid, .. } = self.0.peer_cred()?;
            Ok(Peer { pid, uid, gid })
        }
    }

    /// The fields of credentials, as functions.
    #[derive(Debug, PartialEq)]
    pub struct Peer {
        pid: Option<u32>,
        uid: u32,
        gid: u32,
    }

    impl Peer {
        pub fn pid(&self) -> Option<i32> {
            self.pid.and_then(|pid| i32::try_from(pid).ok())
        }

        pub fn uid(&self) -> u32 {
            self.uid
        }

        pub fn gid(&self) -> u32 {
            self.gid
        }
    }

    fn named((len, from): (usize, UnixAddress)) -> Result<(usize, StdAddress)> {
        let path = from.as_path().unwrap_or(Path::new(""));
        Ok((len, StdAddress::from_pathname(path)?))
    }

    impl UnixDatagram {
        pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
            Ok(Self(ours::UnixDatagram::bind(&driver(), path)?))
        }

        pub fn pair() -> Result<(Self, Self)> {
            let (one, other) = ours::UnixDatagram::pair(&driver())?;
            Ok((Self(one), Self(other)))
        }

        /// With the sender as the standard library names it.
        pub async fn recv_from(
            &self,
            into: &mut [u8],
        ) -> Result<(usize, StdAddress)> {
            named(self.0.recv_from(into).await?)
        }

        pub fn try_recv_from(&self, into: &mut [u8]) -> Result<(usize, StdAddress)> {
            named(self.0.try_recv_from(into)?)
        }

        pub async fn recv_buf_from(&self, into: &mut impl BufMut) -> Result<(usize, StdAddress)> {
            named(self.0.recv_buf_from(into).await?)
        }

        pub fn try_recv_buf_from(&self, into: &mut impl BufMut) -> Result<(usize, StdAddress)> {
            named(self.0.try_recv_buf_from(into)?)
        }
    }
}
