//! TLS: rustls makes the handshake; then the kernel ciphers where it can, and rustls elsewhere.
//!
//! [`TlsConnector`] and [`TlsAcceptor`] take a connected [`Socket`] and give it back as a TLS connection. You use it as
//! before: [`send`](Socket::send), [`receive_into`](Socket::receive_into), [`receive_exact`](Socket::receive_exact),
//! [`shutdown`](Socket::shutdown), which tells the peer that nothing follows (close-notify). If a peer ends without that,
//! receives fail with [`Error::Tls`](crate::Error::Tls), as what came may be cut off.
//!
//! | who ciphers | what moves the bytes of a send | of a receive |
//! |---|---|---|
//! | the kernel ([`Engine::KernelTls`](crate::Engine::KernelTls)) | the cipher alone: `ciphered` in a [`Tally`](crate::Tally) | the cipher alone, with TLS 1.2 or without padding |
//! | rustls ([`Engine::UserTls`](crate::Engine::UserTls)) | the cipher, then the kernel's copy: `copied` | the kernel's copy, the cipher, a copy |
//!
//! Memory is back when its send ends: the cipher has read it. [`receive`](Socket::receive) puts what was deciphered into a
//! pool, and [`Route`](crate::Route)s go both ways: files and streams are spliced to the kernel's cipher, all else goes through
//! memory. Lanes, rx queues, windows and leases are refused.
//!
//! ```no_run
//! # async fn example(driver: handoff::Driver) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use handoff::tls::TlsConnector;
//! use rustls::{ClientConfig, RootCertStore};
//!
//! # let authorities = RootCertStore::empty();
//! let config = ClientConfig::builder().with_root_certificates(authorities).with_no_client_auth();
//! let connector = TlsConnector::new(Arc::new(config));
//! let socket = driver.connect("192.0.2.1:443".parse()?)?.await?;
//! let (socket, session) = connector.connect(socket, "example.net".try_into()?).await?;
//! println!("{} ciphers: {}", session.engine, session.reason);
//! socket.send(handoff::Buffer::from(b"GET / HTTP/1.0\r\n\r\n".to_vec()))?.await?.sent?;
//! # Ok(()) }
//! ```

mod exporter;
mod handshake;
mod kernel;
mod session;

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};
pub use session::{Ciphering, TlsSession};

use self::exporter::Tap;
use self::session::failed;
use crate::error::Result;
use crate::op::cipher::UserKeys;
use crate::socket::Socket;

/// What both sides have.
#[derive(Clone, Debug)]
struct Options {
    ciphering: Ciphering,
    exporting: Option<Vec<u8>>,
}

impl Options {
    async fn run(
        &self,
        socket: Socket,
        keys: UserKeys,
        tap: Option<Arc<Tap>>,
    ) -> Result<(Socket, TlsSession)> {
        let exporting = tap.as_deref().zip(self.exporting.as_deref());
        handshake::run(socket, keys, self.ciphering, exporting).await
    }
}

macro_rules! common_options {
    ($config:ty) => {
        /// Chooses who ciphers.
        pub fn ciphering(mut self, ciphering: Ciphering) -> Self {
            self.options.ciphering = ciphering;
            self
        }

        /// Takes a secret out of the session that both ends can know and nobody else (RFC 5705), under this label. It
        /// binds to the connection what is proved over it.
        pub fn exporting(mut self, label: &[u8]) -> Self {
            self.options.exporting = Some(label.to_vec());
            self
        }

        /// The configuration of the next connection, and where its secret comes out.
        fn tapped(&self) -> (Arc<$config>, Option<Arc<Tap>>) {
            let (mut config, mut tap) = (Arc::clone(&self.config), None);
            if self.options.exporting.is_some() {
                let made = Tap::before(Arc::clone(&config.key_log));
                Arc::make_mut(&mut config).key_log = Arc::clone(&made) as _;
                tap = Some(made);
            }
            (config, tap)
        }
    };
}

/// Begins TLS as a client.
#[derive(Clone, Debug)]
pub struct TlsConnector {
    config: Arc<ClientConfig>,
    options: Options,
}

impl TlsConnector {
    /// By this configuration. The connection's keys leave rustls, for the kernel, whatever it says about that.
    pub fn new(config: impl Into<Arc<ClientConfig>>) -> Self {
        let mut config = config.into();
        Arc::make_mut(&mut config).enable_secret_extraction = true;
        let options = Options { ciphering: Ciphering::Auto, exporting: None };
        Self { config, options }
    }

    common_options!(ClientConfig);

    /// Makes a TLS connection of a connected socket, also of one in use already (STARTTLS): sends must have ended, no
    /// receive may be under way, and nobody else may have a handle on it. The handshake reads no byte past its last record.
    ///
    /// There is no limit of time: put it into [`Driver::timeout`](crate::Driver::timeout). If you drop it, the socket
    /// is in the midst of a handshake, and of no use.
    ///
    /// # Errors
    ///
    /// [`Error::Tls`](crate::Error::Tls), and what sends and receives may report.
    pub async fn connect(
        &self,
        socket: Socket,
        name: ServerName<'static>,
    ) -> Result<(Socket, TlsSession)> {
        let (config, tap) = self.tapped();
        let keys = UnbufferedClientConnection::new(config, name).map_err(failed)?;
        self.options.run(socket, UserKeys::Client(keys), tap).await
    }
}

/// Begins TLS as a server.
#[derive(Clone, Debug)]
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
    options: Options,
}

impl TlsAcceptor {
    /// By this configuration. The connection's keys leave rustls, for the kernel, whatever it says about that.
    pub fn new(config: impl Into<Arc<ServerConfig>>) -> Self {
        let mut config = config.into();
        Arc::make_mut(&mut config).enable_secret_extraction = true;
        let options = Options { ciphering: Ciphering::Auto, exporting: None };
        Self { config, options }
    }

    common_options!(ServerConfig);

    /// As [`TlsConnector::connect`].
    ///
    /// # Errors
    ///
    /// [`Error::Tls`](crate::Error::Tls), and what sends and receives may report.
    pub async fn accept(&self, socket: Socket) -> Result<(Socket, TlsSession)> {
        let (config, tap) = self.tapped();
        let keys = UnbufferedServerConnection::new(config).map_err(failed)?;
        self.options.run(socket, UserKeys::Server(keys), tap).await
    }
}
