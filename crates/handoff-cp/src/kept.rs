//! What a file has beside its bytes: what a replaced file leaves to the one in its place, and what `--preserve` keeps
//! of a source.
//!
//! Contracts:
//! - set-user-ID and set-group-ID are never kept: they belong to bytes that are no longer there;
//! - ACLs and extended attributes of users are kept together: those that the new file has and the old one lacks go.
//!
//! Kernel interface: fchown(2), fchmod(2), xattr(7), acl(5) as `system.posix_acl_access`.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    Gid, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, fchown, fgetxattr, flistxattr,
    fremovexattr, fsetxattr, futimens, getxattr, listxattr,
};
use rustix::io::Errno;

use crate::wire::Attributes;

/// Permission bits, without set-user-ID and set-group-ID.
const BITS: u32 = 0o1777;

/// So that we can open it again while we write it.
const OURS: u32 = 0o600;

/// Extended attributes: names and values.
type Extended = Vec<(CString, Vec<u8>)>;

/// What a copy keeps of its source (`--preserve`).
#[derive(Debug)]
pub(crate) struct Preserved {
    attributes: Attributes,
    /// `None` if nobody knows them: a peer does not tell.
    extended: Option<Extended>,
}

impl Preserved {
    /// What a peer tells.
    pub(crate) fn told(attributes: Attributes) -> Self {
        Self { attributes, extended: None }
    }

    /// All that the source has.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn of(source: impl AsFd, attributes: Attributes) -> io::Result<Self> {
        Ok(Self { attributes, extended: Some(extended(&source)?) })
    }

    /// Whether there is more than a peer is told.
    pub(crate) fn has_extended(&self) -> bool {
        self.extended.as_ref().is_some_and(|all| !all.is_empty())
    }

    /// Gives all of it to a file.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn give_to(&self, file: &File) -> io::Result<()> {
        let Attributes { seconds, nanoseconds, mode } = self.attributes;
        if let Some(extended) = &self.extended {
            set_extended(file, extended)?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode & 0o777))?;
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: time };
        Ok(futimens(file, &times)?)
    }
}

/// What a replaced file leaves to the one that takes its place.
#[derive(Debug)]
pub(crate) struct Legacy {
    mode: u32,
    owner: (u32, u32),
    extended: Extended,
}

impl Legacy {
    /// Of the file at `path`.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let there = fs::metadata(path)?;
        let names = whole(|room| listxattr(path, room))?;
        let get = |name: &CString| whole(|room| getxattr(path, name.as_c_str(), room));
        Ok(Self {
            mode: there.mode() & BITS,
            owner: (there.uid(), there.gid()),
            extended: values(&names, get)?,
        })
    }

    /// Gives a new file all of it but the mode, which comes last.
    ///
    /// # Errors
    ///
    /// When we may not give it to that owner, for one.
    pub(crate) fn give_to(&self, file: &File) -> io::Result<Mode> {
        let now = file.metadata()?;
        let (user, group) = self.owner;
        let user = (user != now.uid()).then(|| Uid::from_raw(user));
        let group = (group != now.gid()).then(|| Gid::from_raw(group));
        if user.is_some() || group.is_some() {
            fchown(file, user, group)?;
        }
        set_extended(file, &self.extended)?;
        Mode::later(file, self.mode)
    }
}

/// The mode that a file gets when it is complete.
#[derive(Debug)]
pub(crate) struct Mode {
    mode: u32,
}

impl Mode {
    /// The one that it was made with, which the umask and the directory have shaped.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        Self::later(file, file.metadata()?.mode() & BITS)
    }

    /// This one; until then we can open the file, too.
    fn later(file: &File, mode: u32) -> io::Result<Self> {
        let now = file.metadata()?.mode() & BITS;
        if now & OURS != OURS {
            file.set_permissions(fs::Permissions::from_mode(now | OURS))?;
        }
        Ok(Self { mode })
    }

    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn give_to(&self, file: &File) -> io::Result<()> {
        if file.metadata()?.mode() & BITS == self.mode {
            return Ok(());
        }
        file.set_permissions(fs::Permissions::from_mode(self.mode))
    }
}

/// ACLs and attributes of users; others, such as labels of security modules, follow from the place of a file.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || [&b"system.posix_acl_access"[..], b"system.nfs4_acl"].contains(&name)
}

fn extended(file: &impl AsFd) -> io::Result<Extended> {
    let names = whole(|room| flistxattr(file, room))?;
    values(&names, |name| whole(|room| fgetxattr(file, name.as_c_str(), room)))
}

/// The values of those that are kept; `names` ends each with a zero.
fn values(names: &[u8], get: impl Fn(&CString) -> io::Result<Vec<u8>>) -> io::Result<Extended> {
    let names = names.split(|byte| *byte == 0).filter(|name| is_kept(name));
    let named = names.map(|name| CString::new(name).map_err(io::Error::from));
    named
        .map(|name| {
            let name = name?;
            let value = get(&name)?;
            Ok((name, value))
        })
        .collect()
}

/// Gives a file these extended attributes, and takes others of their kind away.
fn set_extended(file: &File, wanted: &Extended) -> io::Result<()> {
    for (name, _) in extended(file)? {
        if wanted.iter().all(|(other, _)| *other != name) {
            fremovexattr(file, name.as_c_str())?;
        }
    }
    for (name, value) in wanted {
        fsetxattr(file, name.as_c_str(), value, XattrFlags::empty())?;
    }
    Ok(())
}

/// All bytes of something that is read into room for it, however much that is.
fn whole(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> io::Result<Vec<u8>> {
    let mut room = vec![0; 256];
    loop {
        match read(&mut room) {
            Ok(len) => {
                room.truncate(len);
                return Ok(room);
            }
            // The kernel has no longer ones.
            Err(Errno::RANGE) if room.len() < 1 << 20 => room.resize(room.len() * 4, 0),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
    }
}
