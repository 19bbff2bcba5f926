//! The name, certificate and ciphers of all rows: TLS 1.3 with AES-128-GCM, whatever program it is.

use std::{fs, path::PathBuf, sync::Arc};

use handoff::tls::{Ciphering, TlsAcceptor, TlsConnector};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    version::TLS13,
};

/// The ciphers, as OpenSSL names them.
pub(super) const SUITE: &str = "TLS_AES_128_GCM_SHA256";

const NAME: &str = "bench.invalid";

/// A certificate (ECDSA, P-256), which signs itself, in memory and as files.
pub(super) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    directory: tempfile::TempDir,
}

fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    Arc::new(provider)
}

impl Identity {
    /// # Errors
    ///
    /// One line that says why there is none.
    pub(super) fn new() -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("no certificate: {error}");
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
        let made = made.map_err(|error| failed(&error))?;
        let directory = tempfile::tempdir().map_err(|error| failed(&error))?;
        let identity = Self {
            certificate: made.cert.der().clone(),
            key: PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
            directory,
        };
        let (certificate, key) = identity.files();
        fs::write(certificate, made.cert.pem()).map_err(|error| failed(&error))?;
        fs::write(key, made.signing_key.serialize_pem()).map_err(|error| failed(&error))?;
        Ok(identity)
    }

    /// The files with the certificate and its key, as PEM.
    pub(super) fn files(&self) -> (PathBuf, PathBuf) {
        let path = |name| self.directory.path().join(name);
        (path("certificate.pem"), path("key.pem"))
    }

    /// Begins TLS as a client, with a whole handshake each time.
    ///
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn connector(&self, ciphering: Ciphering) -> Result<TlsConnector, String> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(|error| error.to_string())?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(TlsConnector::new(config).ciphering(ciphering))
    }

    /// Begins TLS as a server, and gives no tickets, which nobody here would use.
    ///
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn acceptor(&self, ciphering: Ciphering) -> Result<TlsAcceptor, String> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(|error| error.to_string())?;
        config.send_tls13_tickets = 0;
        Ok(TlsAcceptor::new(config).ciphering(ciphering))
    }

    /// The server's name.
    pub(super) fn name() -> ServerName<'static> {
        ServerName::try_from(NAME).expect("is a name")
    }
}
