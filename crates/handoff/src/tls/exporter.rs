//! A secret of the session (RFC 8446, 7.5). The kind of connection whose keys rustls hands on exports none, but tells its
//! key log the secret that exports are made of.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::tls13::{HkdfExpander, OkmBlock};
use rustls::{KeyLog, SupportedCipherSuite};

/// Takes the exporter's secret out of what a connection tells its key log, and passes the rest on.
pub(super) struct Tap {
    inner: Arc<dyn KeyLog>,
    secret: Mutex<Option<OkmBlock>>,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").finish_non_exhaustive()
    }
}

const LABEL: &str = "EXPORTER_SECRET";

impl Tap {
    pub(super) fn before(inner: Arc<dyn KeyLog>) -> Arc<Self> {
        Arc::new(Self { inner, secret: Mutex::new(None) })
    }

    /// What both ends can make under this label; `None` without TLS 1.3.
    pub(super) fn export(&self, suite: SupportedCipherSuite, label: &[u8]) -> Option<[u8; 32]> {
        let SupportedCipherSuite::Tls13(suite) = suite else { return None };
        let secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let hash = |of: &[u8]| suite.common.hash_provider.hash(of);
        let nothing = hash(&[]);
        let len = nothing.as_ref().len();
        let of_label = suite.hkdf_provider.expander_for_okm(&secret);
        let mut derived = [0; 64];
        expand(&*of_label, label, nothing.as_ref(), &mut derived[..len]);
        let exporter = suite.hkdf_provider.expander_for_okm(&OkmBlock::new(&derived[..len]));
        derived.fill(0);
        let mut exported = [0; 32];
        expand(&*exporter, b"exporter", nothing.as_ref(), &mut exported);
        Some(exported)
    }
}

/// HKDF-Expand-Label.
fn expand(by: &dyn HkdfExpander, label: &[u8], context: &[u8], into: &mut [u8]) {
    const PREFIX: &[u8] = b"tls13 ";
    let len = (into.len() as u16).to_be_bytes();
    let label_len = [(PREFIX.len() + label.len()) as u8];
    let info: [&[u8]; 6] = [&len, &label_len, PREFIX, label, &[context.len() as u8], context];
    by.expand_slice(&info, into).expect("shorter than 255 hashes");
}

impl KeyLog for Tap {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if label == LABEL {
            let mut place = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
            *place = Some(OkmBlock::new(secret));
        }
        if self.inner.will_log(label) {
            self.inner.log(label, client_random, secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == LABEL || self.inner.will_log(label)
    }
}
