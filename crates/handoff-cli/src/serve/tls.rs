//! HTTPS: the certificate, and who will cipher.

use std::sync::Arc;

use handoff::tls::TlsAcceptor;
use handoff_command::Failure;
use handoff_command::certificates::CertArgs;
use handoff_probe::kernel_tls;
use handoff_sys::ktls::Cipher;

/// What all threads have of it.
pub(super) struct Tls {
    pub(super) acceptor: TlsAcceptor,
    /// Why the kernel ciphers nothing, if so.
    pub(super) note: Option<String>,
}

impl Tls {
    /// With the certificate that is asked for, if one is.
    ///
    /// # Errors
    ///
    /// What is wrong with the files.
    pub(super) fn new(args: &CertArgs) -> Result<Option<Self>, Failure> {
        let Some(identity) = args.load()? else { return Ok(None) };
        let acceptor = TlsAcceptor::new(Arc::new(identity.server_config(&[b"http/1.1"])?));
        // Each connection tries what it agrees on; this one, most have.
        let note = kernel_tls(Cipher::Aes128Gcm, true).err();
        let note =
            note.map(|reason| format!("kernel TLS can't serve, so this process ciphers: {reason}"));
        Ok(Some(Self { acceptor, note }))
    }
}
