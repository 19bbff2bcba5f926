//! Peers over TLS that mean no good: an impostor of a listener, and who has no KEY.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
};
use rustls::{SignatureScheme, StreamOwned};

/// Takes any listener, and keeps its certificate.
#[derive(Debug, Default)]
struct Credulous(Mutex<Option<CertificateDer<'static>>>);

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = Some(certificate.clone().into_owned());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn client(verifier: Arc<Credulous>) -> ClientConnection {
    let config = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let name = ServerName::try_from("handoff.invalid").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

/// What a client says first.
pub(crate) fn client_hello() -> Vec<u8> {
    let mut hello = Vec::new();
    client(Arc::default()).write_tls(&mut hello).unwrap();
    hello
}

/// The certificate that a listener shows everybody.
pub(crate) fn certificate_of(host: &str) -> CertificateDer<'static> {
    let verifier = Arc::new(Credulous::default());
    let mut stream = TcpStream::connect(host).unwrap();
    client(Arc::clone(&verifier)).complete_io(&mut stream).unwrap();
    verifier.0.lock().unwrap().take().unwrap()
}

/// Guesses the secret; returns all that the listener says of it.
pub(crate) fn guess(host: &str) -> Vec<u8> {
    let stream = TcpStream::connect(host).unwrap();
    let mut stream = StreamOwned::new(client(Arc::default()), stream);
    stream.write_all(&[7; 32]).unwrap();
    let mut answer = Vec::new();
    // It ends without a close-notify.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// A listener that has the KEY's certificate, or none of it.
pub(crate) struct Impostor {
    pub(crate) address: SocketAddr,
    heard: JoinHandle<Vec<u8>>,
}

impl Impostor {
    /// With the certificate of somebody else, or with its own.
    pub(crate) fn new(certificate: Option<CertificateDer<'static>>) -> Self {
        let pair = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["handoff.invalid".to_owned()]).unwrap();
        let own = params.self_signed(&pair).unwrap().der().clone();
        let private = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        let signing = provider::sign::any_ecdsa_type(&private).unwrap();
        let certified = CertifiedKey::new(vec![certificate.unwrap_or(own)], signing);
        let config = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard = thread::spawn(move || {
            let stream = listener.accept().unwrap().0;
            let keys = ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = StreamOwned::new(keys, stream);
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            heard
        });
        Self { address, heard }
    }

    /// All bytes that somebody has sent to it over TLS.
    pub(crate) fn heard(self) -> Vec<u8> {
        self.heard.join().unwrap()
    }
}
