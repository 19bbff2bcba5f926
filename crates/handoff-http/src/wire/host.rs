//! The syntax of hosts (RFC 3986, 3.2.2 and 3.2.3).

use std::net::Ipv6Addr;

/// Whether this is `uri-host [ ":" port ]` with a host that is not empty. Names have no percent-encoded bytes here, which
/// [`Uri`](http::Uri) does not take.
pub(super) fn is_host(text: &[u8]) -> bool {
    match behind_host(text) {
        Some([b':', port @ ..]) => is_port(port),
        Some(behind) => behind.is_empty(),
        None => false,
    }
}

/// Whether this is a host and a port, both not empty.
pub(super) fn is_host_with_port(text: &[u8]) -> bool {
    matches!(behind_host(text), Some([b':', port @ ..]) if !port.is_empty() && is_port(port))
}

/// What comes behind a host, if this begins with one.
fn behind_host(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| *byte == b']')?;
            is_literal(&rest[..end]).then_some(&rest[end + 1..])
        }
        name => {
            let end = name.iter().position(|byte| !is_of_name(*byte)).unwrap_or(name.len());
            (end > 0).then_some(&name[end..])
        }
    }
}

/// What stands in brackets: an address of IPv6, or of a later version (`IPvFuture`).
fn is_literal(text: &[u8]) -> bool {
    if let [b'v' | b'V', rest @ ..] = text {
        let Some(dot) = rest.iter().position(|byte| *byte == b'.') else { return false };
        let (version, address) = (&rest[..dot], &rest[dot + 1..]);
        return !version.is_empty()
            && version.iter().all(u8::is_ascii_hexdigit)
            && !address.is_empty()
            && address.iter().all(|byte| *byte == b':' || is_of_name(*byte));
    }
    str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// Digits of a number that a port can have, or none.
fn is_port(text: &[u8]) -> bool {
    let mut port = 0_u32;
    text.iter().all(|byte| {
        port = (port * 10).saturating_add(u32::from(byte.wrapping_sub(b'0')));
        byte.is_ascii_digit() && port <= u32::from(u16::MAX)
    })
}

/// `unreserved` and `sub-delims`.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for host in [
            "h",
            "H-1.example.",
            "h:",
            "h:0",
            "h:0080",
            "h:65535",
            "192.0.2.1:80",
            "a_b~!$&'()*+,;=",
            "[::]",
            "[::1]:",
            "[2001:db8::1]:443",
            "[::ffff:192.0.2.1]",
            "[v1f.a:b]",
            "[V0.~]:1",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            ":",
            ":80",
            "h:65536",
            "h:99999999999999999999",
            "h:+1",
            "h:-1",
            "h:0x1",
            "h:1.2",
            "h:80:80",
            "a b",
            "a@b",
            "a/b",
            "a\\b",
            "a?b",
            "a#b",
            "a\"b",
            "a%41",
            "\u{fc}",
            "[]",
            "[::1",
            "::1",
            "::1]",
            "[::1].",
            "[::1].:80",
            "[::1]80",
            "h[::1]",
            "[1:2]",
            "[a..b::1]",
            "[::1%eth0]",
            "[192.0.2.1]",
            "[v.a]",
            "[vg.a]",
            "[v1.]",
            "[v1a]",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
        for (host, has_port) in [("h:80", true), ("[::1]:80", true), ("h:", false), ("h", false)] {
            assert_eq!(is_host_with_port(host.as_bytes()), has_port, "{host}");
        }
    }
}
