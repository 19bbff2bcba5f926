//! The head that a proxy sends before a connection's bytes, which says for whom it has connected.
//!
//! Contracts:
//! - nothing behind the head is taken, and a peer that sends none is told by its first bytes;
//! - a head is read whatever its pieces are, and is 4 KiB long at most;
//! - what a head has beside addresses is ignored.
//!
//! Format: the PROXY protocol, versions 1 and 2, of HAProxy (`doc/proxy-protocol.txt`).

use std::net::SocketAddr;

use ppp::{v1, v2};

/// The longest head that is read. Its writer may add to the addresses.
pub const MAX_HEAD: usize = 4096;

/// The longest head of version 1.
const MAX_TEXT: usize = 107;

/// Before the length, in version 2.
const FIXED: usize = 16;

/// What a proxy says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Who connects, and to which address; `None` where it is the proxy itself, or no address of TCP.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Bytes of the head.
    pub len: usize,
}

/// The form of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Version {
    /// A line of text
    V1,
    /// Binary
    V2,
}

/// Reads the head at the beginning of these bytes; `None` if more must come.
///
/// # Errors
///
/// Why they begin with none.
pub fn read(bytes: &[u8]) -> Result<Option<Head>, String> {
    let begins = |with: &[u8]| {
        let len = bytes.len().min(with.len());
        bytes[..len] == with[..len]
    };
    if begins(v2::PROTOCOL_PREFIX) {
        return read_binary(bytes);
    }
    if begins(b"PROXY ") {
        return read_text(bytes);
    }
    Err("it sends no head of the PROXY protocol (--accept-proxy)".to_owned())
}

fn wrong(why: impl std::fmt::Display) -> String {
    format!("its head of the PROXY protocol is wrong: {why}")
}

fn read_text(bytes: &[u8]) -> Result<Option<Head>, String> {
    let searched = &bytes[..bytes.len().min(MAX_TEXT)];
    let Some(end) = searched.windows(2).position(|pair| pair == b"\r\n") else {
        return match searched.len() < MAX_TEXT {
            true => Ok(None),
            false => Err(wrong("its line is longer than 107 bytes")),
        };
    };
    let len = end + 2;
    let header = v1::Header::try_from(&bytes[..len]).map_err(wrong)?;
    let addresses = match header.addresses {
        v1::Addresses::Unknown => None,
        v1::Addresses::Tcp4(ip) => Some(both(
            (ip.source_address, ip.source_port),
            (ip.destination_address, ip.destination_port),
        )),
        v1::Addresses::Tcp6(ip) => Some(both(
            (ip.source_address, ip.source_port),
            (ip.destination_address, ip.destination_port),
        )),
    };
    Ok(Some(Head { addresses, len }))
}

fn read_binary(bytes: &[u8]) -> Result<Option<Head>, String> {
    let Some(fixed) = bytes.first_chunk::<FIXED>() else { return Ok(None) };
    let len = FIXED + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if len > MAX_HEAD {
        return Err(wrong(format_args!("it is longer than {MAX_HEAD} bytes")));
    }
    let Some(head) = bytes.get(..len) else { return Ok(None) };
    let header = v2::Header::try_from(head).map_err(wrong)?;
    let addresses = match (header.command, header.protocol, header.addresses) {
        (v2::Command::Proxy, v2::Protocol::Stream, v2::Addresses::IPv4(ip)) => Some(both(
            (ip.source_address, ip.source_port),
            (ip.destination_address, ip.destination_port),
        )),
        (v2::Command::Proxy, v2::Protocol::Stream, v2::Addresses::IPv6(ip)) => Some(both(
            (ip.source_address, ip.source_port),
            (ip.destination_address, ip.destination_port),
        )),
        _ => None,
    };
    Ok(Some(Head { addresses, len }))
}

fn both(from: impl Into<SocketAddr>, to: impl Into<SocketAddr>) -> (SocketAddr, SocketAddr) {
    (from.into(), to.into())
}

/// Makes the head for who connects and to which address; `None` where these are none of TCP.
pub fn head(version: Version, addresses: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let addresses = addresses.map(|(from, to)| same_family(from, to));
    match version {
        Version::V1 => {
            let addresses =
                addresses.map_or(v1::Addresses::Unknown, |(from, to)| (from, to).into());
            addresses.to_string().into_bytes()
        }
        Version::V2 => {
            let addresses =
                addresses.map_or(v2::Addresses::Unspecified, |(from, to)| (from, to).into());
            let protocol = match addresses {
                v2::Addresses::Unspecified => v2::Protocol::Unspecified,
                _ => v2::Protocol::Stream,
            };
            let command = v2::Version::Two | v2::Command::Proxy;
            let head = v2::Builder::with_addresses(command, protocol, addresses).build();
            head.expect("addresses are short")
        }
    }
}

/// A socket for both versions of IP has IPv4 addresses in the form of IPv6. If only one of the two is of IPv4, both get
/// this form.
fn same_family(from: SocketAddr, to: SocketAddr) -> (SocketAddr, SocketAddr) {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let mapped = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        SocketAddr::V6(_) => address,
    };
    let (from, to) = (plain(from), plain(to));
    match from.is_ipv4() == to.is_ipv4() {
        true => (from, to),
        false => (mapped(from), mapped(to)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn heads_are_as_the_protocol_shows_them() {
        let v4 = Some((address("192.0.2.7:4000"), address("[::ffff:198.51.100.1]:443")));
        let text = head(Version::V1, v4);
        assert_eq!(text, b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n");
        let binary = head(Version::V2, v4);
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        expected.extend([192, 0, 2, 7, 198, 51, 100, 1, 0x0f, 0xa0, 1, 0xbb]);
        assert_eq!(binary, expected);
        assert_eq!(head(Version::V1, None), b"PROXY UNKNOWN\r\n");
        assert_eq!(head(Version::V2, None), b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0");
        let mixed = head(Version::V1, Some((address("192.0.2.7:1"), address("[2001:db8::1]:2"))));
        assert_eq!(mixed, b"PROXY TCP6 ::ffff:192.0.2.7 2001:db8::1 1 2\r\n");
    }

    #[test]
    fn what_is_not_the_clients_is_none() {
        // A check by the proxy itself, and a client of a Unix socket.
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
        assert_eq!(read(local), Ok(Some(Head { addresses: None, len: 16 })));
        let mut unix = b"\r\n\r\n\0\r\nQUIT\n\x21\x31\0\xd8".to_vec();
        unix.extend([0; 216]);
        assert_eq!(read(&unix), Ok(Some(Head { addresses: None, len: 232 })));
        let unknown = b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\nGET /";
        assert_eq!(read(unknown), Ok(Some(Head { addresses: None, len: 35 })));
    }

    #[test]
    fn mistakes_name_themselves() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], "no head"),
            (b"\r\nGET", "no head"),
            (b"PROXY TCP4 192.0.2.7 198.51.100.1 4000\r\n", "wrong"),
            (b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 65536\r\n", "wrong"),
            (b"PROXY TCP5 192.0.2.7 198.51.100.1 4000 443\r\n", "wrong"),
            (b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c192.0.2.7...", "wrong"),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff", "longer than 4096 bytes"),
        ] {
            let error = read(bytes).expect_err("it is wrong");
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        }
        let long = [&b"PROXY TCP4 "[..], &[b'1'; 100]].concat();
        assert!(read(&long).expect_err("too long").contains("107"));
    }

    proptest! {
        #[test]
        fn heads_come_back_in_any_pieces(
            from: ([u8; 16], u16), to: ([u8; 16], u16), v4: bool, text: bool, cut: u16,
            rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let made = |(ip, port): ([u8; 16], u16)| match v4 {
                true => SocketAddr::from(([ip[0], ip[1], ip[2], ip[3]], port)),
                false => {
                    let mut ip = ip;
                    // Not one of IPv4 in the form of IPv6.
                    ip[0] = 0x20;
                    SocketAddr::from((ip, port))
                }
            };
            let (from, to) = (made(from), made(to));
            let version = if text { Version::V1 } else { Version::V2 };
            let head = head(version, Some((from, to)));
            let len = head.len();
            let bytes = [head, rest].concat();
            prop_assert_eq!(read(&bytes), Ok(Some(Head { addresses: Some((from, to)), len })));
            let part = &bytes[..usize::from(cut) % len];
            prop_assert_eq!(read(part), Ok(None));
        }

        #[test]
        fn no_bytes_are_too_odd(
            start in prop::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP6 ", v2::PROTOCOL_PREFIX]),
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [start, &bytes].concat();
            if let Ok(Some(head)) = read(&bytes) {
                prop_assert!(head.len <= bytes.len());
            }
        }
    }
}
