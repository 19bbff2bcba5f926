//! Whether the kernel can cipher, and the hand-over to it.

use std::os::fd::AsFd as _;
use std::sync::OnceLock;

use handoff_probe::kernel_tls;
use handoff_sys::ktls::{self, Cipher as KernelsCipher, Way};
use rustls::{CipherSuite, ExtractedSecrets, ProtocolVersion, SupportedCipherSuite};

use super::session::failed;
use crate::error::{Error, Result};
use crate::op::cipher::{Cipher, KernelCipher, KernelKeys, UserKeys, set_keys};
use crate::socket::Socket;

/// What the kernel can do with a cipher.
#[derive(Clone, Debug)]
pub(super) struct Can {
    version: ProtocolVersion,
    /// It takes other keys for an open connection.
    takes_other_keys: bool,
    /// Records that one key may cipher.
    limit: u64,
}

/// What the kernel can do with this cipher, or why nothing. It is tried once in a process, over loopback.
pub(super) fn takes(
    version: ProtocolVersion,
    suite: SupportedCipherSuite,
) -> std::result::Result<Can, String> {
    static TRIED: [OnceLock<std::result::Result<bool, String>>; 6] = [const { OnceLock::new() }; 6];
    let (cipher, limit) = match suite {
        SupportedCipherSuite::Tls12(suite) => {
            (suite.common.suite, suite.common.confidentiality_limit)
        }
        SupportedCipherSuite::Tls13(suite) => {
            (suite.common.suite, suite.common.confidentiality_limit)
        }
    };
    let (cipher, place) = match cipher {
        CipherSuite::TLS13_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => (KernelsCipher::Aes128Gcm, 0),
        CipherSuite::TLS13_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => (KernelsCipher::Aes256Gcm, 1),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
            (KernelsCipher::Chacha20Poly1305, 2)
        }
        other => return Err(format!("the kernel does not know {other:?}")),
    };
    let is_tls13 = version == ProtocolVersion::TLSv1_3;
    let tried =
        TRIED[2 * place + usize::from(is_tls13)].get_or_init(|| kernel_tls(cipher, is_tls13));
    tried.clone().map(|takes_other_keys| Can { version, takes_other_keys, limit })
}

/// Has the kernel take a connection for TLS, or says why it does not.
pub(super) fn attach(socket: &Socket) -> std::result::Result<(), String> {
    ktls::attach(socket.shared.endpoint.fd.as_fd()).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => {
            "the peer has ended its direction already, and the kernel then begins no TLS".to_owned()
        }
        _ => format!("the kernel takes no TLS on this connection: {error}"),
    })
}

/// Hands the keys of an attached connection to the kernel.
pub(super) fn give(socket: &Socket, keys: UserKeys, can: &Can) -> Result<Cipher> {
    let (secrets, keys) = match keys {
        UserKeys::Client(keys) => keys
            .dangerous_into_kernel_connection()
            .map(|(secrets, keys)| (secrets, KernelKeys::Client(keys))),
        UserKeys::Server(keys) => keys
            .dangerous_into_kernel_connection()
            .map(|(secrets, keys)| (secrets, KernelKeys::Server(keys))),
    }
    .map_err(failed)?;
    let ExtractedSecrets { tx, rx } = secrets;
    let fd = socket.shared.endpoint.fd.as_fd();
    let given = set_keys(fd, Way::Transmit, can.version, &tx)
        .and_then(|()| set_keys(fd, Way::Receive, can.version, &rx));
    given.map_err(|error| Error::io("handing keys to the kernel", error))?;
    let is_tls13 = can.version == ProtocolVersion::TLSv1_3;
    // Without it, the kernel copies what it deciphers.
    let in_place = !is_tls13 || ktls::expect_no_padding(fd).is_ok();
    let cipher = KernelCipher::new(keys, can.version, can.limit, can.takes_other_keys, in_place);
    Ok(Cipher::Kernel(Box::new(cipher)))
}
