//! Probes of TLS in the kernel.
//!
//! Kernel interface: `TCP_ULP`, and the options of linux/tls.h. Keys of zeroes are set on a connection over loopback, over
//! which nothing goes. The first trial makes the kernel load its module `tls`.

use std::net::TcpStream;
use std::os::fd::AsFd as _;

use handoff_sys::ktls::{self, Cipher, Keys, Way};

use super::answer::{Answer, Finding};
use super::{kernel_module, send};

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::Chacha20Poly1305];

pub(super) fn in_kernel() -> Finding {
    let known: Vec<_> = CIPHERS.into_iter().filter(|cipher| keyed(*cipher, true).is_ok()).collect();
    if known.is_empty() {
        return keyed(CIPHERS[0], true).map(|_| Answer::yes());
    }
    let names: Vec<_> = known.into_iter().map(Cipher::name).collect();
    Ok(Answer::yes().detail(format!("TLS 1.3 with {}", names.join(", "))))
}

pub(super) fn key_update() -> Finding {
    let connection = keyed(CIPHERS[0], true)?;
    match set_keys(&connection, CIPHERS[0], true, Way::Transmit) {
        Ok(()) => Ok(Answer::yes()),
        Err(error) => Err(Answer::no(format!("other keys are refused: {error}")).remedy(
            "Linux 6.14 takes them; before it, a connection ends when its key has ciphered enough",
        )),
    }
}

/// Whether the kernel ciphers connections in this way, and then whether it takes other keys for an open one.
///
/// # Errors
///
/// In one line, why it does not, and what would help.
pub fn kernel_tls(cipher: Cipher, is_tls13: bool) -> Result<bool, String> {
    let connection = keyed(cipher, is_tls13).map_err(|answer| answer.in_one_line())?;
    Ok(set_keys(&connection, cipher, is_tls13, Way::Transmit).is_ok())
}

/// A connection whose both directions have keys.
fn keyed(cipher: Cipher, is_tls13: bool) -> Result<TcpStream, Answer> {
    const CONFIG: &str = "CONFIG_TLS";
    let (connection, _peer) = send::tcp_pair()?;
    ktls::attach(connection.as_fd()).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => {
            kernel_module::missing("tls", &kernel_module::look("tls", "tcp-ulp-tls"), CONFIG)
        }
        _ => Answer::unknown(format!("TCP_ULP fails: {error}")),
    })?;
    for way in [Way::Transmit, Way::Receive] {
        set_keys(&connection, cipher, is_tls13, way).map_err(|error| {
            Answer::no(format!("{} is refused: {error}", cipher.name()))
                .remedy("a kernel that has it; user space ciphers elsewhere")
        })?;
    }
    Ok(connection)
}

fn set_keys(
    connection: &TcpStream,
    cipher: Cipher,
    is_tls13: bool,
    way: Way,
) -> std::io::Result<()> {
    let key = &[0; 32][..cipher.key_len()];
    let keys = Keys { is_tls13, cipher, key, iv: &[0; 12], sequence: 0 };
    ktls::set_keys(connection.as_fd(), way, &keys)
}
