//! Names of Unix sockets.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net;
use std::path::Path;
use std::str::FromStr;

use socket2::{SockAddr, SockRef};

use crate::error::{Error, Result};

/// The longest name in bytes: a path has its end in the same room, an abstract name its beginning.
const LONGEST: usize = 107;

/// The name of a Unix socket: a path, an abstract name, or none.
///
/// An abstract name has no file and goes with its socket. As text a path is `unix:/path`, an abstract name
/// `unix:@name`.
///
/// ```
/// # fn main() -> handoff::Result<()> {
/// use handoff::UnixAddress;
///
/// let file: UnixAddress = "unix:/run/app.sock".parse()?;
/// assert_eq!(file, UnixAddress::path("/run/app.sock")?);
/// let name = UnixAddress::abstract_name("app")?;
/// assert_eq!(name.to_string(), "unix:@app");
/// assert!(UnixAddress::path("x".repeat(108)).unwrap_err().to_string().contains("107 bytes"));
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UnixAddress(SockAddr);

impl UnixAddress {
    /// A name in the file system.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty path, one with a NUL byte, and one of more than 107 bytes.
    pub fn path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = path.as_os_str().as_bytes();
        let wrong = if bytes.is_empty() {
            "a Unix socket's path is empty: UnixAddress::unnamed has the kernel choose a name"
        } else if bytes.contains(&0) {
            "a Unix socket's path has no NUL byte: UnixAddress::abstract_name makes names without a file"
        } else if bytes.len() > LONGEST {
            "a Unix socket's path has 107 bytes at most: use a shorter one, such as one relative to the working \
             directory"
        } else {
            return SockAddr::unix(path)
                .map(Self)
                .map_err(|error| Error::io("naming a Unix socket", error));
        };
        Err(Error::Invalid(wrong))
    }

    /// A name without a file (Linux only), which is free again when its socket is closed. Everybody in the same network
    /// namespace may connect, so look at [the peer](crate::Socket::peer_credentials).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty name, and one of more than 107 bytes.
    pub fn abstract_name(name: impl AsRef<[u8]>) -> Result<Self> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(Error::Invalid(
                "an abstract name is empty: UnixAddress::unnamed has the kernel choose one",
            ));
        }
        if name.len() > LONGEST {
            return Err(Error::Invalid("an abstract name of a Unix socket has 107 bytes at most"));
        }
        let path = [&[0], name].concat();
        SockAddr::unix(OsStr::from_bytes(&path))
            .map(Self)
            .map_err(|error| Error::io("naming a Unix socket", error))
    }

    /// No name. Bound to it, a socket gets a free abstract name of the kernel's choice.
    pub fn unnamed() -> Self {
        // SAFETY: the address is one family and nothing behind it, and so long.
        unsafe {
            SockAddr::try_init(|storage, len| {
                let family = libc::AF_UNIX as libc::sa_family_t;
                storage.cast::<libc::sa_family_t>().write(family);
                *len = size_of::<libc::sa_family_t>() as libc::socklen_t;
                Ok(())
            })
        }
        .map(|((), address)| Self(address))
        .expect("nothing fails here")
    }

    /// The name of a socket.
    ///
    /// # Errors
    ///
    /// When it is not a Unix socket.
    pub fn local(socket: &impl AsFd) -> Result<Self> {
        SockRef::from(socket)
            .local_addr()
            .map_err(|error| Error::io("asking for the name of a socket", error))
            .and_then(named)
    }

    /// The name of a socket's peer. Most clients have none.
    ///
    /// # Errors
    ///
    /// When it is not a Unix socket, or not connected.
    pub fn peer(socket: &impl AsFd) -> Result<Self> {
        SockRef::from(socket)
            .peer_addr()
            .map_err(|error| Error::io("asking for the name of a peer", error))
            .and_then(named)
    }

    /// The path, if it is one.
    pub fn as_path(&self) -> Option<&Path> {
        self.0.as_pathname()
    }

    /// The abstract name, if it is one.
    pub fn as_abstract_name(&self) -> Option<&[u8]> {
        self.0.as_abstract_namespace()
    }

    /// Whether there is no name.
    pub fn is_unnamed(&self) -> bool {
        self.0.is_unnamed()
    }

    pub(crate) fn as_socket_address(&self) -> &SockAddr {
        &self.0
    }
}

/// The kernel's address as a name.
pub(crate) fn named(address: SockAddr) -> Result<UnixAddress> {
    if !address.is_unix() {
        return Err(Error::Invalid("this is not a Unix socket"));
    }
    Ok(UnixAddress(address))
}

impl FromStr for UnixAddress {
    type Err = Error;

    /// Takes `unix:/path`, `unix:path` and `unix:@name`; a path that begins with `@` is `unix:./@path`.
    fn from_str(text: &str) -> Result<Self> {
        let Some(name) = text.strip_prefix("unix:") else {
            return Err(Error::Invalid("a Unix socket is written unix:/path or unix:@name"));
        };
        match name.strip_prefix('@') {
            Some(name) => Self::abstract_name(name),
            None => Self::path(name),
        }
    }
}

impl TryFrom<net::SocketAddr> for UnixAddress {
    type Error = Error;

    fn try_from(address: net::SocketAddr) -> Result<Self> {
        use std::os::linux::net::SocketAddrExt as _;
        match (address.as_pathname(), address.as_abstract_name()) {
            (Some(path), _) => Self::path(path),
            (None, Some(name)) => Self::abstract_name(name),
            (None, None) => Ok(Self::unnamed()),
        }
    }
}

impl fmt::Display for UnixAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.as_path() {
            write!(f, "unix:{}", path.display())
        } else if let Some(name) = self.as_abstract_name() {
            write!(f, "unix:@{}", name.escape_ascii())
        } else {
            f.write_str("unix:")
        }
    }
}

impl fmt::Debug for UnixAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
