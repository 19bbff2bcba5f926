//! What a side of a copy is, as written on the command line.
//!
//! Contracts:
//! - nothing is looked up or opened here: the same text gives the same answer everywhere;
//! - whatever is not an address by its form is a path; a text that looks like an address and is
//!   none is an error, never a file of a strange name;
//! - [`Display`](fmt::Display) of an endpoint gives a text that parses to the same.

use std::ffi::OsStr;
use std::fmt;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The longest host name that the domain name system has.
const MAX_HOST: usize = 253;

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A path.
    File(PathBuf),
    /// `-`: standard input or output.
    Pipe,
    /// `tcp://host:port`: a peer to connect to.
    Connect(Endpoint),
    /// `tcp-listen://addr:port`: where to wait for the peer.
    Listen(Endpoint),
    /// `tls://host:port`: a peer to connect to, ciphered.
    ConnectTls(Endpoint),
    /// `tls-listen://addr:port`: where to wait for the peer, ciphered.
    ListenTls(Endpoint),
    /// `rds://host:port`: where reliable datagrams go, or are waited for.
    Rds(Endpoint),
}

/// Host and port, with the brackets of an IPv6 address taken off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address; empty where a listener takes all addresses.
    pub host: String,
    /// 0 only for a listener, which then is given a free one.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Pipe => f.write_str("-"),
            Self::Connect(endpoint) => write!(f, "tcp://{endpoint}"),
            Self::Listen(endpoint) => write!(f, "tcp-listen://{endpoint}"),
            Self::ConnectTls(endpoint) => write!(f, "tls://{endpoint}"),
            Self::ListenTls(endpoint) => write!(f, "tls-listen://{endpoint}"),
            Self::Rds(endpoint) => write!(f, "rds://{endpoint}"),
        }
    }
}

/// What is wrong with an address, in one line that says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(pub(crate) String);

impl Address {
    /// Where the peer of a connection is, or is waited for, in the clear or not.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Connect(endpoint)
            | Self::Listen(endpoint)
            | Self::ConnectTls(endpoint)
            | Self::ListenTls(endpoint) => Some(endpoint),
            Self::File(_) | Self::Pipe | Self::Rds(_) => None,
        }
    }

    /// Whether it waits for the peer of a connection.
    pub fn listens(&self) -> bool {
        matches!(self, Self::Listen(_) | Self::ListenTls(_))
    }

    /// Whether its bytes are ciphered on their way.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::ConnectTls(_) | Self::ListenTls(_))
    }

    /// Takes an argument of the command line apart.
    ///
    /// # Errors
    ///
    /// What makes a text with a scheme no address, and an empty text.
    pub fn parse(text: &OsStr) -> Result<Self, AddressError> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(AddressError("an empty path: give a file, tcp://host:port, or -".into()));
        }
        if bytes == b"-" {
            return Ok(Self::Pipe);
        }
        let Some((scheme, rest)) = split_scheme(bytes) else {
            return Ok(Self::File(PathBuf::from(text)));
        };
        let shown = text.to_string_lossy();
        match scheme {
            b"tcp" => Endpoint::parse(rest, &shown, false).map(Self::Connect),
            b"tcp-listen" => Endpoint::parse(rest, &shown, true).map(Self::Listen),
            b"tls" => Endpoint::parse(rest, &shown, false).map(Self::ConnectTls),
            b"tls-listen" => Endpoint::parse(rest, &shown, true).map(Self::ListenTls),
            b"rds" => Endpoint::parse(rest, &shown, false).map(Self::Rds),
            _ => Err(AddressError(format!(
                "\"{shown}\" has an unknown scheme: there are tls://, tls-listen://, tcp://, tcp-listen:// and rds://, \
                 and a file of this name is ./{shown}"
            ))),
        }
    }
}

/// The text of a path that has the form of an address without its scheme.
pub fn looks_like_endpoint(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let host = Endpoint::parse(text.as_bytes(), text, false).ok()?.host;
    (host.contains(['.', ':']) || host == "localhost").then_some(text)
}

/// Scheme and rest of `scheme://rest`, where the part before has the form of a scheme.
fn split_scheme(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let (scheme, rest) = bytes.split_at(colon);
    let rest = rest.strip_prefix(b"://")?;
    let (first, others) = scheme.split_first()?;
    let is_scheme = first.is_ascii_alphabetic()
        && others.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    is_scheme.then_some((scheme, rest))
}

impl Endpoint {
    /// Takes `addr:port` or `:port` apart, where a listener is to wait.
    ///
    /// # Errors
    ///
    /// What makes it none.
    pub fn to_listen_at(text: &str) -> Result<Self, AddressError> {
        Self::parse(text.as_bytes(), text, true)
    }

    fn parse(rest: &[u8], shown: &str, listens: bool) -> Result<Self, AddressError> {
        let wrong = |what: &str| Err(AddressError(format!("\"{shown}\": {what}")));
        let Ok(rest) = std::str::from_utf8(rest) else {
            return wrong("an address is written in ASCII");
        };
        if rest.contains('/') {
            return wrong("nothing follows the port of an address");
        }
        let (host, port) = if let Some(bracketed) = rest.strip_prefix('[') {
            let Some((host, after)) = bracketed.split_once(']') else {
                return wrong("the bracket of the IPv6 address is not closed");
            };
            if !is_ipv6(host) {
                return wrong("between the brackets goes an IPv6 address, such as [::1]");
            }
            match after.strip_prefix(':') {
                Some(port) => (host, port),
                None => return wrong("the port is missing: [address]:port"),
            }
        } else {
            let Some((host, port)) = rest.rsplit_once(':') else {
                return wrong("the port is missing: host:port");
            };
            if host.contains(':') {
                return wrong("an IPv6 address goes in brackets: [address]:port");
            }
            (host, port)
        };
        if host.is_empty() && !listens {
            return wrong("the host is missing: host:port");
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if !rest.starts_with('[') && (host.len() > MAX_HOST || !host.bytes().all(is_name)) {
            return wrong("a host name has letters, digits, hyphens and dots, 253 at most");
        }
        if port.is_empty() {
            return wrong("the port is missing after the colon");
        }
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return wrong("the port is a number");
        }
        match (port.parse::<u16>(), listens) {
            (Err(_), _) => wrong("the port is above 65535"),
            (Ok(0), false) => wrong("port 0 can't be connected to"),
            (Ok(port), _) => Ok(Self { host: host.to_owned(), port }),
        }
    }
}

/// An IPv6 address, with a zone ("%eth0") where it has one.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
    let zone_fits =
        (1..=15).contains(&zone.len()) && zone.bytes().all(|byte| byte.is_ascii_graphic());
    address.parse::<Ipv6Addr>().is_ok() && zone_fits && !zone.contains(['%', '[', ']'])
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Address, String> {
        Address::parse(OsStr::new(text)).map_err(|error| error.to_string())
    }

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.into(), port }
    }

    #[test]
    fn forms() {
        assert_eq!(parse("-"), Ok(Address::Pipe));
        assert_eq!(parse("tcp://a.b-c:80"), Ok(Address::Connect(endpoint("a.b-c", 80))));
        assert_eq!(parse("tcp://[::1]:80"), Ok(Address::Connect(endpoint("::1", 80))));
        assert_eq!(
            parse("tcp://[fe80::1%eth0]:1"),
            Ok(Address::Connect(endpoint("fe80::1%eth0", 1)))
        );
        assert_eq!(parse("tcp-listen://:0"), Ok(Address::Listen(endpoint("", 0))));
        assert_eq!(
            parse("tcp-listen://10.0.0.1:65535"),
            Ok(Address::Listen(endpoint("10.0.0.1", 65535)))
        );
        for path in ["file", "./tcp://x:1", "a:b", "/x", "--", "tcp:/x", "1a://b", "://", " -"] {
            assert_eq!(parse(path), Ok(Address::File(path.into())));
        }
    }

    #[test]
    fn mistakes_name_themselves() {
        for (text, expected) in [
            ("", "empty"),
            ("udp://h:1", "unknown scheme"),
            ("TCP://h:1", "unknown scheme"),
            ("tcp://h", "port is missing"),
            ("tcp://h:", "port is missing"),
            ("tcp://[::1]", "port is missing"),
            ("tcp://:80", "host is missing"),
            ("tcp://h:65536", "above 65535"),
            ("tcp://h:99999999999999999999", "above 65535"),
            ("tcp://h:-1", "a number"),
            ("tcp://h:+1", "a number"),
            ("tcp://h:0", "port 0"),
            ("tcp://::1:80", "brackets"),
            ("tcp://[::1:80", "not closed"),
            ("tcp://[host]:80", "between the brackets"),
            ("tcp://[::1%]:80", "between the brackets"),
            ("tcp://u@h:80", "host name"),
            ("tcp://h:80/x", "nothing follows"),
            ("tcp-listen://h:x", "a number"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
        let not_text = OsString::from_vec(b"tcp://\xff:1".to_vec());
        assert!(Address::parse(&not_text).is_err());
    }

    proptest! {
        #[test]
        fn never_panics_and_says_what_it_took(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(address) = Address::parse(OsStr::from_bytes(&bytes))
                && address.endpoint().is_some()
            {
                prop_assert_eq!(parse(&address.to_string()), Ok(address));
            }
        }

        #[test]
        fn endpoints_come_back(
            host in "[a-z0-9][a-z0-9.-]{0,40}|\\[[0-9a-f]{1,4}::[0-9a-f]{1,4}(%[a-z0-9]{1,10})?\\]",
            port in 1u16..,
            scheme in prop::sample::select(vec!["tcp", "tcp-listen", "tls", "tls-listen"]),
        ) {
            let text = format!("{scheme}://{host}:{port}");
            let address = parse(&text).unwrap();
            prop_assert_eq!(address.listens(), scheme.ends_with("-listen"));
            prop_assert_eq!(address.is_tls(), scheme.starts_with("tls"));
            prop_assert_eq!(address.to_string(), text);
        }
    }
}
