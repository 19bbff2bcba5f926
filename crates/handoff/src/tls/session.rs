//! Who ciphers, and what a handshake agreed on.

use std::fmt;

use rustls::pki_types::CertificateDer;
use rustls::{ProtocolVersion, SupportedCipherSuite};

use crate::error::Error;
use crate::mechanism::Engine;

/// Who may cipher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ciphering {
    /// The kernel where it can, else this process.
    #[default]
    Auto,
    /// The kernel; a connection fails where it cannot.
    Kernel,
    /// This process.
    User,
}

/// What a handshake agreed on.
#[derive(Clone)]
#[non_exhaustive]
pub struct TlsSession {
    /// Who ciphers: [`Engine::KernelTls`] or [`Engine::UserTls`].
    pub engine: Engine,
    /// Why, for people to read.
    pub reason: String,
    /// The version.
    pub version: ProtocolVersion,
    /// The ciphers.
    pub suite: SupportedCipherSuite,
    /// The application's protocol (ALPN), if one was agreed on.
    pub protocol: Option<Vec<u8>>,
    /// The peer's certificates, its own first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The secret that was [asked for](super::TlsConnector::exporting), which both ends have.
    pub exported: Option<[u8; 32]>,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The exported secret is nobody's to read.
        f.debug_struct("TlsSession")
            .field("engine", &self.engine)
            .field("reason", &self.reason)
            .field("version", &self.version)
            .field("suite", &self.suite.suite())
            .finish_non_exhaustive()
    }
}

pub(super) fn failed(error: rustls::Error) -> Error {
    Error::Tls { reason: error.to_string() }
}
