//! Certificates and private keys in PEM files, as commands with TLS take them.
//!
//! Contracts:
//! - what is wrong with a file is one line, with what to do;
//! - a private key that every user of this machine may read or replace is refused;
//! - an expired certificate is told of and used, so that a restart ends no service;
//! - files that are renewed in place are read anew, and used once they fit each other;
//! - what is read of a key is zeroed, and a process that has one leaves no core (`PR_SET_DUMPABLE`).

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore, ServerConfig};
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::output;

/// Bytes of a file: some hundred certificates.
const MOST: u64 = 4 << 20;

/// Between looks whether the files were renewed.
const LOOK: Duration = Duration::from_secs(1);

/// The certificate of a server, as every command that serves over TLS takes it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CertArgs {
    /// Serve over TLS, with this certificate: a PEM file, with the server's own certificate first and those that it
    /// was signed by behind it. A renewed file is used from the next connection on
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    pub cert: Option<PathBuf>,

    /// The private key of --cert: a PEM file that is not encrypted, and that not every user may read (chmod 600)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub cert_key: Option<PathBuf>,
}

impl CertArgs {
    /// Reads both files, if they are given, and warns of an expired certificate.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] with what is wrong with a file.
    pub fn load(&self) -> Result<Option<Identity>, Failure> {
        match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => Identity::load(cert, key).map(Some),
            _ => Ok(None),
        }
    }
}

/// Who a server is: a certificate and its private key.
#[derive(Clone, Debug)]
pub struct Identity(Arc<Files>);

/// The files, and what they had.
#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    certified: Arc<CertifiedKey>,
    /// Of the files that were read last, whatever was wrong with them.
    stamps: [Option<Stamp>; 2],
    looked: Instant,
}

impl Identity {
    /// Reads both files, and warns of an expired certificate.
    ///
    /// # Errors
    ///
    /// As of [`CertArgs::load`].
    pub fn load(cert: &Path, key: &Path) -> Result<Self, Failure> {
        // It fails on no kernel; a core would have the private key.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let provider = Arc::new(provider::default_provider());
        let stamps = stamps(cert, key);
        let certified = certified(cert, key, &provider).map_err(Failure::usage)?;
        warning(cert, &certified, &provider, SystemTime::now()).into_iter().for_each(output::say);
        let current = Current { certified: Arc::new(certified), stamps, looked: Instant::now() };
        let (cert, key) = (cert.to_owned(), key.to_owned());
        Ok(Self(Arc::new(Files { cert, key, provider, current: Mutex::new(current) })))
    }

    /// How a server with this certificate speaks TLS 1.2 and 1.3, with these protocols above it (ALPN). All threads of a
    /// server have the same configuration, so that sessions are resumed by any of them.
    ///
    /// # Errors
    ///
    /// When there are no random bits.
    pub fn server_config(&self, protocols: &[&[u8]]) -> Result<ServerConfig, Failure> {
        let failed = |error| Failure::failed(format!("beginning TLS: {error}"));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.0.provider))
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.0) as _);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        // Sessions are kept by the clients, so that no crowd of them can displace others here.
        config.ticketer = provider::Ticketer::new().map_err(failed)?;
        Ok(config)
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= LOOK {
            current.looked = Instant::now();
            self.look(&mut current);
        }
        Some(Arc::clone(&current.certified))
    }
}

impl Files {
    /// Reads files that are others than those before. Of a pair that does not fit, the other file may be on its way.
    fn look(&self, current: &mut Current) {
        let stamps = stamps(&self.cert, &self.key);
        // What is no file, such as a pipe, is read once.
        if stamps == current.stamps || stamps.iter().flatten().any(|stamp| !stamp.is_file) {
            return;
        }
        current.stamps = stamps;
        match certified(&self.cert, &self.key, &self.provider) {
            Ok(certified) => {
                output::say(format_args!("note: {} was renewed, and is used", self.cert.display()));
                let warning = warning(&self.cert, &certified, &self.provider, SystemTime::now());
                warning.into_iter().for_each(output::say);
                current.certified = Arc::new(certified);
            }
            Err(why) => {
                output::say(format_args!("note: the certificate before is used further: {why}"));
            }
        }
    }
}

/// What tells one state of a file from another. The time of its change is among it, since who may read it matters, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    is_file: bool,
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
    written: (i64, i64),
}

fn stamps(cert: &Path, key: &Path) -> [Option<Stamp>; 2] {
    [cert, key].map(|path| {
        let it = std::fs::metadata(path).ok()?;
        Some(Stamp {
            is_file: it.is_file(),
            file: (it.dev(), it.ino()),
            size: it.size(),
            changed: (it.ctime(), it.ctime_nsec()),
            written: (it.mtime(), it.mtime_nsec()),
        })
    })
}

/// The authorities that a client trusts: those of this file, or the system's.
///
/// # Errors
///
/// [`Failure::Usage`] with what is wrong with the file, [`Failure::NotPossible`] if the system has none.
pub fn authorities(file: Option<&Path>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = file {
        let wrong = |why: &str| Failure::usage(format!("the authority {}: {why}", file.display()));
        let text = read(file).map_err(|why| wrong(&why))?;
        for authority in chain(&text).map_err(|why| wrong(&why))? {
            roots.add(authority).map_err(|error| wrong(&error.to_string()))?;
        }
        return Ok(roots);
    }
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err(Failure::not_possible(
            "this machine has no authorities for certificates: install ca-certificates, or name a file of them by --ca",
        )),
        false => Ok(roots),
    }
}

/// The name that a server's certificate must be for: a name of the DNS, or an address.
///
/// # Errors
///
/// [`Failure::Usage`] if it is neither.
pub fn server_name(name: &str) -> Result<ServerName<'static>, Failure> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        Failure::usage(format!(
            "\"{name}\" is no name that a certificate can be for: give a host's name or an address"
        ))
    })
}

/// The certificates of a file, in their order.
///
/// # Errors
///
/// What is wrong with the text.
pub fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) if has(text, b"PRIVATE KEY-----") => {
            Err("it has a private key and no certificate: is it for --cert-key?".to_owned())
        }
        Ok(_) => Err("it has no certificate in PEM (-----BEGIN CERTIFICATE-----); of one in DER, \
             'openssl x509 -inform der -in FILE -out NEW' makes one"
            .to_owned()),
        Err(error) => Err(damaged(&error).to_owned()),
    }
}

/// What is wrong with a text, and nothing that it has.
fn damaged(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "it is cut off: a section has no end",
        pem::Error::Base64Decode(_) => "it is damaged: a section is no base64",
        _ => "it is damaged",
    }
}

/// The private key of a file.
///
/// # Errors
///
/// What is wrong with the text.
pub fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| {
        // PKCS #8 says it in the first line, and the older form behind it.
        if has(text, b"ENCRYPTED PRIVATE KEY-----") || has(text, b"Proc-Type: 4,ENCRYPTED") {
            return "it is encrypted: decrypt it with 'umask 077; openssl pkey -in FILE -out NEW', and name the new file"
                .to_owned();
        }
        match error {
            pem::Error::NoItemsFound => {
                "it has no private key in PEM (-----BEGIN PRIVATE KEY-----)".to_owned()
            }
            error => damaged(&error).to_owned(),
        }
    })
}

fn has(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|it| it == words)
}

/// The certificates and the private key, which fit each other.
fn certified(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
    let of_cert = |why: String| format!("the certificate {}: {why}", cert.display());
    let of_key = |why: String| format!("the private key {}: {why}", key.display());
    let chain = read(cert).and_then(|text| chain(&text)).map_err(of_cert)?;
    let private = read_secret(key).and_then(|text| private_key(&text)).map_err(of_key)?;
    let private = provider.key_provider.load_private_key(private);
    let private = private.map_err(|error| of_key(format!("it can't be used: {error}")))?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => Err(of_key(format!(
            "it is the key of another certificate than the first of {}",
            cert.display()
        ))),
        Err(error) => Err(of_cert(error.to_string())),
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    File::open(path).map_err(|error| error.to_string()).and_then(read_open)
}

/// Reads a file that not every user may read or write. What is no file, such as a pipe, has no such mode.
fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.is_file() && metadata.mode() & 0o006 != 0 {
        return Err(format!(
            "every user of this machine may read or change it: 'chmod 600 {}', and make a new key if others may have \
             read it",
            path.display()
        ));
    }
    read_open(file)
}

fn read_open(file: File) -> Result<Zeroizing<Vec<u8>>, String> {
    // A buffer that grew would leave what it had before.
    let mut text = Zeroizing::new(Vec::with_capacity(64 << 10));
    let read = file.take(MOST + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    match read as u64 > MOST {
        true => Err("it is too large for one".to_owned()),
        false => Ok(text),
    }
}

/// What is to be said of a certificate's time.
fn warning(
    path: &Path,
    certified: &CertifiedKey,
    provider: &CryptoProvider,
    now: SystemTime,
) -> Option<String> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(now);
    let (first, rest) = certified.cert.split_first()?;
    let first = ParsedCertificate::try_from(first).ok()?;
    // Its time is looked at before anybody who could have signed it; nobody has.
    let algorithms = provider.signature_verification_algorithms.all;
    let nobody = RootCertStore::empty();
    let checked = verify_server_cert_signed_by_trust_anchor(&first, &nobody, rest, now, algorithms);
    let date = |time: UnixTime| {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time.as_secs()));
        time.map_or_else(
            || "ever".to_owned(),
            |time| humantime::format_rfc3339_seconds(time).to_string(),
        )
    };
    let name = path.display();
    match checked {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(format!(
                "note: the certificate {name} expired at {}: clients refuse it until it is renewed",
                date(not_after)
            ))
        }
        Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before, ..
        })) => Some(format!(
            "note: the certificate {name} is valid from {} on only: clients refuse it, or this machine's clock is wrong",
            date(not_before)
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
