//! TLS between two ends that share a KEY: the listener's certificate, which the KEY names, and the proofs.
//!
//! Contracts:
//! - the end that connects goes on only with the listener that the KEY names, whoever else signs the handshake;
//! - then both prove that they have the KEY, each in its own words and for this session, before a byte of the file, its
//!   length, or anything else of the transfer;
//! - the certificate and its private key are in this process's memory only;
//! - a wrong proof is answered after [`PAUSE`], and keeps its place among the strangers meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use handoff::tls::{TlsAcceptor, TlsConnector, TlsSession};
use handoff::{Buffer, Driver, Error, Socket};
use handoff_command::Failure;
use handoff_command::failure::Failed;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs as provider, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
};
use zeroize::{Zeroize as _, Zeroizing};

use crate::key::{End, Key, NAME, PROOF, name_of};

/// How long a wrong proof is not answered.
const PAUSE: Duration = Duration::from_secs(1);

/// What both ends take out of the session for their proofs.
const EXPORTED: &[u8] = b"EXPORTER-handoff-cp-key";

/// Before the listener's proof: it follows, or this KEY is not the listener's.
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;

const PROVING: &str = "proving the KEY";

/// A connection whose ends have proved themselves, and who ciphers it.
pub(crate) type Unlocked = (Socket, TlsSession);

/// What one end needs to let the other in.
pub(crate) enum Lock {
    /// The end that made the KEY.
    Listens(Key, Arc<ServerConfig>),
    /// The end that was given it.
    Connects(Key, Arc<CryptoProvider>),
}

fn ciphers() -> Arc<CryptoProvider> {
    let mut provider = provider::default_provider();
    // What kernels cipher best comes first.
    provider.cipher_suites = vec![
        provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
        provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
        provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

impl Lock {
    /// For the end that listens: with a new certificate and a new KEY.
    ///
    /// # Errors
    ///
    /// When there are no random bits.
    pub(crate) fn make() -> Result<Self, Failure> {
        const MAKING: &str = "making a KEY";
        let words = |error: &dyn std::fmt::Display| Failure::failed(format!("{MAKING}: {error}"));
        let mut pair = KeyPair::generate().map_err(|error| words(&error))?;
        let params = CertificateParams::new(vec!["handoff.invalid".to_owned()]);
        let certificate = params.and_then(|params| params.self_signed(&pair));
        let certificate = certificate.map_err(|error| words(&error))?.der().clone();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialized_der()));
        let signing = provider::sign::any_ecdsa_type(&private).map_err(|error| words(&error));
        pair.zeroize();
        let name = named(&certificate).map_err(|error| words(&error))?;
        let certified = CertifiedKey::new(vec![certificate], signing?);
        let mut config = ServerConfig::builder_with_provider(ciphers())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| words(&error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        // Each connection makes the whole handshake, and nothing of it is kept.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        let key = Key::new(name).map_err(|error| words(&error))?;
        Ok(Self::Listens(key, Arc::new(config)))
    }

    /// For the end that connects.
    pub(crate) fn with(key: Key) -> Self {
        Self::Connects(key, ciphers())
    }

    /// The KEY.
    pub(crate) fn key(&self) -> &Key {
        match self {
            Self::Listens(key, _) | Self::Connects(key, _) => key,
        }
    }

    /// Makes a TLS connection of this one, and lets both ends prove themselves. It has no limit of time.
    ///
    /// # Errors
    ///
    /// A peer that speaks something else, or has another KEY.
    pub(crate) async fn open(&self, driver: &Driver, socket: Socket) -> Result<Unlocked, Failure> {
        match self {
            Self::Listens(key, config) => accept(driver, key, config, socket).await,
            Self::Connects(key, provider) => connect(key, provider, socket).await,
        }
    }
}

async fn accept(
    driver: &Driver,
    key: &Key,
    config: &Arc<ServerConfig>,
    socket: Socket,
) -> Result<Unlocked, Failure> {
    let acceptor = TlsAcceptor::new(Arc::clone(config)).exporting(EXPORTED);
    let (socket, session) = acceptor.accept(socket).await.map_err(|error| match error {
        Error::Tls { reason } if reason.contains("fatal alert") => {
            Failure::failed("it does not take this listener for the one that its KEY names")
        }
        error => Failure::failed(format!(
            "it does not begin as a `handoff cp` that connects to tls://: {error}"
        )),
    })?;
    let (session, exported) = taken_apart(session)?;
    let theirs = heard(&socket, PROOF).await?;
    if !key.proves(End::Connects, &*exported, &theirs) {
        driver.sleep(PAUSE).await.failed(PROVING)?;
        said(&socket, [REFUSED; 1 + PROOF].to_vec()).await?;
        return Err(Failure::failed("it has another KEY"));
    }
    let ours = [&[ACCEPTED][..], &key.proof(End::Listens, &*exported)].concat();
    said(&socket, ours).await?;
    Ok((socket, session))
}

async fn connect(
    key: &Key,
    provider: &Arc<CryptoProvider>,
    socket: Socket,
) -> Result<Unlocked, Failure> {
    const ANOTHER: &str = "the listener has another KEY: a KEY is good for one transfer with the listener that \
                           printed it, so take the one that this listener prints";
    let verifier = Arc::new(Named {
        name: key.name(),
        refused: AtomicBool::new(false),
        algorithms: provider.signature_verification_algorithms,
    });
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(Failure::failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as _)
        .with_no_client_auth();
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    let connector = TlsConnector::new(config).exporting(EXPORTED);
    let name = ServerName::try_from("handoff.invalid").expect("is a name");
    let (socket, session) = connector.connect(socket, name).await.map_err(|error| {
        match verifier.refused.load(Ordering::Relaxed) {
            true => Failure::failed(ANOTHER),
            false => Failure::failed(format!(
                "the listener does not speak TLS as `handoff cp` does, is busy with another transfer, or was cut \
                 off (is it tls-listen:// there?): {error}"
            )),
        }
    })?;
    let (session, exported) = taken_apart(session)?;
    said(&socket, key.proof(End::Connects, &*exported).to_vec()).await?;
    let theirs = heard(&socket, 1 + PROOF).await?;
    match theirs[0] == ACCEPTED && key.proves(End::Listens, &*exported, &theirs[1..]) {
        true => Ok((socket, session)),
        false => Err(Failure::failed(ANOTHER)),
    }
}

/// Takes the certificate that the KEY names, in place of one that somebody has signed.
#[derive(Debug)]
struct Named {
    name: [u8; NAME],
    /// The listener has another one.
    refused: AtomicBool,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The name of a certificate.
fn named(certificate: &CertificateDer<'_>) -> Result<[u8; NAME], rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    Ok(name_of(&parsed.subject_public_key_info()))
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match named(certificate)? == self.name {
            true => Ok(ServerCertVerified::assertion()),
            false => {
                self.refused.store(true, Ordering::Relaxed);
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("a KEY needs TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The session, and what both ends have of it; the session has it no more.
fn taken_apart(mut session: TlsSession) -> Result<(TlsSession, Zeroizing<[u8; 32]>), Failure> {
    let mut exported = Zeroizing::new([0; 32]);
    let there = session.exported.as_mut().ok_or_else(|| Failure::failed("no TLS 1.3"))?;
    exported.copy_from_slice(there);
    there.zeroize();
    session.exported = None;
    Ok((session, exported))
}

async fn said(socket: &Socket, words: Vec<u8>) -> Result<(), Failure> {
    let sent = socket.send(Buffer::from(words)).failed(PROVING)?.await.failed(PROVING)?.sent;
    sent.map(drop).failed(PROVING)
}

async fn heard(socket: &Socket, len: usize) -> Result<Buffer, Failure> {
    let received = socket.receive_exact(Buffer::from(vec![0; len])).failed(PROVING)?;
    let received = received.await.failed(PROVING)?;
    match received.result {
        Ok(_) => Ok(received.buffer),
        Err(error)
            if matches!(error, Error::StreamEnded { .. } | Error::Tls { .. })
                || error.raw_os_error() == Some(libc::ECONNRESET) =>
        {
            Err(Failure::failed(
                "the peer ended the connection before it proved that it has the KEY",
            ))
        }
        Err(error) => Err(error).failed(PROVING),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use futures_util::future::join;
    use handoff::Buffer;

    use super::*;

    /// A driver, and both ends of a connection: the one that has accepted it, and the other.
    fn connected() -> (Driver, Socket, Socket) {
        let driver = Driver::new().expect("a driver");
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let far = driver.socket(listener.accept().expect("accepts").0).expect("attached");
        let near = driver.socket(near).expect("attached");
        (driver, far, near)
    }

    async fn end(lock: &Lock, driver: &Driver, socket: Socket) -> Result<(), String> {
        let opened = lock.open(driver, socket).await;
        opened.map(drop).map_err(|failure| failure.line().unwrap_or_default())
    }

    /// What each end comes to. A failed end closes its side.
    fn opened(listens: &Lock, connects: &Lock) -> (Result<(), String>, Result<(), String>) {
        let (driver, far, near) = connected();
        let both = join(end(listens, &driver, far), end(connects, &driver, near));
        driver.block_on(both).expect("driven")
    }

    /// The KEY that somebody was given.
    fn given(lock: &Lock) -> Key {
        Key::parse(&lock.key().text()).expect("a KEY")
    }

    /// A listener with the private key that the KEY names, and another secret.
    fn with_another_secret(lock: &Lock) -> Lock {
        let Lock::Listens(key, config) = lock else { unreachable!("it listens") };
        Lock::Listens(Key::new(key.name()).expect("random bits"), Arc::clone(config))
    }

    #[test]
    fn who_has_the_key_gets_in() {
        let listens = Lock::make().expect("a KEY");
        assert_eq!(opened(&listens, &Lock::with(given(&listens))), (Ok(()), Ok(())));
    }

    #[test]
    fn another_listener_is_refused_by_its_certificate() {
        let (listens, other) = (Lock::make().expect("a KEY"), Lock::make().expect("a KEY"));
        let (there, here) = opened(&listens, &Lock::with(given(&other)));
        assert!(there.expect_err("refused").contains("the one that its KEY names"));
        assert!(here.expect_err("refused").contains("the listener has another KEY"));
    }

    #[test]
    fn another_secret_is_refused_by_the_listener() {
        let listens = Lock::make().expect("a KEY");
        let guessed = Lock::with(Key::new(listens.key().name()).expect("random bits"));
        let begin = std::time::Instant::now();
        let (there, here) = opened(&listens, &guessed);
        assert_eq!(there, Err("it has another KEY".to_owned()));
        assert!(here.expect_err("refused").contains("the listener has another KEY"));
        assert!(begin.elapsed() >= PAUSE, "it could try again at once");
    }

    /// Who connects proves itself first, and so must be told by the answer.
    #[test]
    fn a_listener_without_the_secret_is_refused() {
        struct Says(u8);
        impl Says {
            async fn hello(&self, lock: &Lock, socket: Socket) {
                let Lock::Listens(key, config) = lock else { unreachable!("it listens") };
                let acceptor = TlsAcceptor::new(Arc::clone(config)).exporting(EXPORTED);
                let (socket, session) = acceptor.accept(socket).await.expect("a handshake");
                let (_, exported) = taken_apart(session).expect("TLS 1.3");
                let theirs = heard(&socket, PROOF).await.expect("a proof");
                let words = match self.0 {
                    // What it has heard, sent back.
                    0 => [&[ACCEPTED], &theirs[..]].concat(),
                    // The proof of another secret.
                    1 => [&[ACCEPTED][..], &key.proof(End::Listens, &*exported)].concat(),
                    // The right one of another session.
                    _ => [&[ACCEPTED][..], &key.proof(End::Listens, &[7; 32])].concat(),
                };
                said(&socket, words).await.expect("sent");
            }
        }
        let listens = Lock::make().expect("a KEY");
        let another = with_another_secret(&listens);
        for (how, lock) in [(0, &listens), (1, &another), (2, &listens)] {
            let (driver, far, near) = connected();
            let connects = Lock::with(given(&listens));
            let says = Says(how);
            let both = join(says.hello(lock, far), connects.open(&driver, near));
            let ended = driver.block_on(both).expect("driven").1;
            let failure = ended.map(drop).expect_err("refused");
            assert!(failure.line().expect("a line").contains("another KEY"), "{how}");
        }
    }

    #[test]
    fn what_is_no_tls_is_told() {
        let listens = Lock::make().expect("a KEY");
        let (driver, far, near) = connected();
        let ended = driver.block_on(async {
            let garbage = Buffer::from(b"GET / HTTP/1.1\r\n".to_vec());
            let sent = near.send(garbage).expect("accepted").await;
            sent.and_then(|sent| sent.sent).expect("sent");
            listens.open(&driver, far).await.map(drop).expect_err("no TLS")
        });
        let line = ended.expect("driven").line().expect("a line");
        assert!(line.contains("tls://"), "{line}");
    }
}
