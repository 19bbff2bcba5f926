//! The file that stands for the name of a bound Unix socket.
//!
//! Contracts:
//! - a file is removed by who made it, when the socket goes, and only if it is still the same file;
//! - a file in the way is replaced only if it is a socket at which nobody listens or receives any more. Of several who
//!   do so one has the lock, and the others are told; a socket that is bound and does not listen yet has [`GRACE`];
//! - a child of fork(2) leaves the file to its parent.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use handoff_sys::process::Process;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, lstat, open, unlink};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::UnixAddress;
use crate::error::{Error, Result};

/// Between bind(2) and listen(2) of another process a socket looks like one that nobody has.
const GRACE: Duration = Duration::from_millis(20);

/// Removed with this.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    made_by: Process,
    kept: bool,
}

impl SocketFile {
    /// Binds a socket of this type to a name. Returns the file if the name has one. `ready` makes the socket usable for
    /// others, while nobody takes the file for a left one.
    ///
    /// # Errors
    ///
    /// When somebody has the name; what the kernel says of it.
    pub(crate) fn bind(
        socket: &Socket,
        address: &UnixAddress,
        kind: Type,
        ready: impl Fn(&Socket) -> io::Result<()>,
    ) -> Result<Option<Self>> {
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => name_in_use(address, OPEN),
            _ => Error::io("binding a Unix socket", error),
        };
        let bound = |bound: io::Result<()>| bound.and_then(|()| ready(socket)).map_err(failed);
        let name = address.as_socket_address();
        let Some(path) = address.as_path() else {
            bound(socket.bind(name))?;
            return Ok(None);
        };
        // Later the working directory may be another.
        let path = std::path::absolute(path).map_err(failed)?;
        match socket.bind(name) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                let _lock = clear(&path, address, kind)?;
                bound(socket.bind(name))?;
            }
            fresh => bound(fresh)?,
        }
        let identity = identity(&path).map_err(|error| failed(error.into()))?;
        Ok(Some(Self { path, identity, made_by: Process::this(), kept: false }))
    }

    /// Goes, and leaves the file.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.kept && self.made_by.is_this() && identity(&self.path) == Ok(self.identity) {
            // Somebody may have removed it since.
            let _ = unlink(&self.path);
        }
    }
}

fn identity(path: &Path) -> rustix::io::Result<(u64, u64)> {
    lstat(path).map(|stat| of(&stat))
}

fn of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Why a name cannot be had.
const OPEN: &str = "by a socket that somebody has open";

fn name_in_use(address: &UnixAddress, why: &'static str) -> Error {
    Error::NameInUse { name: address.to_string(), why }
}

/// Removes a socket's file that nobody stands behind. Nobody else does so until the result is dropped.
fn clear(path: &Path, address: &UnixAddress, kind: Type) -> Result<Lock> {
    let in_use = |why| Err(name_in_use(address, why));
    let Some(lock) = Lock::beside(path)? else {
        return in_use("by another that is about to listen there");
    };
    match lstat(path).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Socket) => {}
        // It has gone meanwhile.
        Err(Errno::NOENT) => return Ok(lock),
        _ => return in_use("by a file that is no socket"),
    }
    for _ in 0..2 {
        if !is_left(address.as_socket_address(), kind)? {
            return in_use(OPEN);
        }
        thread::sleep(GRACE / 2);
    }
    tracing::info!(%address, "the file of a Unix socket that nobody has is replaced");
    match unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(lock),
        Err(error) => Err(Error::io("removing the file of a Unix socket", error.into())),
    }
}

/// A locked file beside a socket's, which goes with this. Only who may make files there can make it, and only its owner
/// can open it.
struct Lock {
    path: PathBuf,
    _file: OwnedFd,
}

impl Lock {
    /// `None` if somebody has it.
    fn beside(path: &Path) -> Result<Option<Self>> {
        let failed = |error: Errno| Error::io("locking the name of a Unix socket", error.into());
        let path = PathBuf::from([path.as_os_str(), ".lock".as_ref()].join(OsStr::new("")));
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.map_err(failed)?,
        }
        // Its last owner may have removed it meanwhile.
        let is_there = fstat(&file).map(|stat| of(&stat)) == identity(&path);
        Ok(is_there.then_some(Self { path, _file: file }))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = unlink(&self.path);
    }
}

/// Whether nobody listens or receives at a name; whatever else the kernel says, somebody may.
fn is_left(name: &SockAddr, kind: Type) -> Result<bool> {
    let asking = Socket::new(Domain::UNIX, kind.nonblocking(), None).map_err(|error| {
        Error::descriptor("making a socket", error.raw_os_error().unwrap_or(libc::EIO))
    })?;
    let answer = SockRef::from(&asking).connect(name);
    Ok(answer.is_err_and(|error| error.raw_os_error() == Some(libc::ECONNREFUSED)))
}
