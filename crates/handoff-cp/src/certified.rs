//! Bare bytes over TLS with other programs, by certificates instead of a KEY.
//!
//! Contracts:
//! - a listener shows its certificate, and asks for none: it does not know who connects;
//! - who connects sends and takes nothing before the listener's certificate is trusted, and is for the name;
//! - a certificate that is in the file of --ca itself is trusted, as `openssl req -x509` makes them.

use std::path::Path;
use std::sync::Arc;

use handoff::tls::{TlsAcceptor, TlsConnector, TlsSession};
use handoff::{Error, Socket};
use handoff_command::Failure;
use handoff_command::certificates::{authorities, chain, server_name};
use handoff_net::address::Address;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use crate::args::Args;

/// What one end needs for TLS by certificates.
pub(crate) enum Certified {
    Listens(TlsAcceptor),
    Connects(TlsConnector, ServerName<'static>),
}

impl Certified {
    /// Of these sides; `None` unless one of them is ciphered and carries bare bytes.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] with what is wrong with a file or the name.
    pub(crate) fn of(args: &Args, sides: [&Address; 2]) -> Result<Option<Self>, Failure> {
        let side = sides.into_iter().find(|side| side.is_tls() && args.raw);
        let Some((side, endpoint)) = side.and_then(|it| Some((it, it.endpoint()?))) else {
            return Ok(None);
        };
        if side.listens() {
            let identity = args.certificate.load()?.ok_or_else(|| {
                Failure::usage("--raw with tls-listen:// needs --cert FILE and --cert-key FILE")
            })?;
            return Ok(Some(Self::Listens(TlsAcceptor::new(identity.server_config(&[])?))));
        }
        let name = server_name(args.name.as_deref().unwrap_or(&endpoint.host))?;
        let provider = Arc::new(provider::default_provider());
        let verifier = Trusts::new(args.ca.as_deref(), &provider)?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Failure::failed)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Some(Self::Connects(TlsConnector::new(config), name)))
    }

    /// Makes a TLS connection of this one. It has no limit of time.
    ///
    /// # Errors
    ///
    /// A peer that speaks something else, or whose certificate is not trusted.
    pub(crate) async fn open(&self, socket: Socket) -> Result<(Socket, TlsSession), Failure> {
        let opened = match self {
            Self::Listens(acceptor) => acceptor.accept(socket).await,
            Self::Connects(connector, name) => connector.connect(socket, name.clone()).await,
        };
        opened.map_err(|error| {
            let why = match error {
                Error::Tls { reason } => reason,
                error => error.to_string(),
            };
            let advice = advice(&why).map(|advice| format!(" ({advice})")).unwrap_or_default();
            Failure::failed(format!("no TLS with the peer: {why}{advice}"))
        })
    }
}

/// Whether the peer has refused the connection by an alert, perhaps behind the handshake.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Tls { reason }
        if reason.contains("fatal alert") || reason.contains("the peer ended the connection"))
}

/// What to do about a handshake that failed for this reason.
fn advice(why: &str) -> Option<&'static str> {
    const ADVICE: [(&str, &str); 10] = [
        ("certificate expired", "it must be renewed there, or this machine's clock is wrong"),
        ("certificate not valid yet", "this machine's clock or the other's is wrong"),
        ("UnknownIssuer", "name the file of its authority, or of itself, by --ca"),
        ("BadSignature", "its authority is not the one of this name: name that one's file by --ca"),
        ("CaUsedAsEndEntity", "it is an authority's own: name its file by --ca to trust just it"),
        (
            "not valid for",
            "say by --name which name it is for, if you know that it is the right one",
        ),
        ("ProtocolVersion", "TLS 1.2 or 1.3 is needed at both ends"),
        ("incompatible", "both ends need TLS 1.2 or 1.3, and a common cipher"),
        ("does not speak TLS", "is the address right, and of a program that speaks TLS?"),
        (
            "alert",
            "the peer refuses: its own log says more, and its --ca may need this certificate",
        ),
    ];
    ADVICE.iter().find(|(part, _)| why.contains(part)).map(|(_, advice)| *advice)
}

/// Trusts authorities, and the certificates that the user names themselves.
#[derive(Debug)]
struct Trusts {
    by_authority: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl Trusts {
    fn new(file: Option<&Path>, provider: &Arc<CryptoProvider>) -> Result<Self, Failure> {
        let roots = Arc::new(authorities(file)?);
        let named = match file {
            // It was read just now.
            Some(file) => std::fs::read(file).ok().and_then(|text| chain(&text).ok()),
            None => None,
        };
        let by_authority =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        Ok(Self {
            by_authority: by_authority.map_err(Failure::failed)?,
            named: named.unwrap_or_default(),
        })
    }
}

impl ServerCertVerifier for Trusts {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.by_authority.verify_server_cert(certificate, intermediates, name, ocsp, now);
        match verified {
            // Its time was looked at before.
            Err(rustls::Error::InvalidCertificate(why))
                if why.to_string().contains("CaUsedAsEndEntity")
                    && self.named.iter().any(|it| it == certificate) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}
