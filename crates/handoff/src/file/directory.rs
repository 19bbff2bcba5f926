//! Directories, and what is done by names.
//!
//! Minimum kernel: 6.1 with a ring (`OPENAT2`, `STATX`, 5.6; `RENAMEAT`, `UNLINKAT`, 5.11; `MKDIRAT`, `LINKAT`, 5.15).
//! Without a ring 5.6 for [`OpenOptions::beneath`], any for all else. Capability: that of the call. Return signal: the
//! completion.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, fstat};

use super::call::{self, FileCall};
use super::{File, Metadata, OpenOptions};
use crate::error::{Error, Result};
use crate::op::{Answer, FileCall as Call, Name};
use crate::reactor::Reactor;
use crate::ring::Endpoint;

/// Where paths begin: an open directory, or the process's working directory.
///
/// All calls take a path that begins there, or an absolute one. Names are looked up when the kernel makes the call. Errors
/// name the path ([`Error::Path`]).
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver) -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Buffer, OpenOptions, Renaming};
///
/// let directory = driver.working_directory()?;
/// let options = OpenOptions::new().write(true).create_new(true).clone();
/// let file = directory.open("next", &options)?.await?;
/// file.write_at(Buffer::from(b"whole".to_vec()), 0)?.await?.result?;
/// file.sync_data()?.await?;
/// // Who looks finds the old bytes or the new ones.
/// directory.rename("next", &directory, "current", Renaming::Replace)?.await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Directory {
    /// `None` for the working directory.
    endpoint: Option<Rc<Endpoint>>,
    driver: Rc<Reactor>,
}

/// What becomes of what has the new name ([`Directory::rename`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Renaming {
    /// It loses its name to the other.
    Replace,
    /// It stays, and the call fails with `EEXIST` (`RENAME_NOREPLACE`, Linux 3.15).
    NoReplace,
    /// It gets the old name (`RENAME_EXCHANGE`, Linux 3.15).
    Exchange,
}

impl Directory {
    /// The process's working directory.
    pub(crate) fn working(driver: Rc<Reactor>) -> Self {
        Self { endpoint: None, driver }
    }

    pub(crate) fn attach(driver: Rc<Reactor>, fd: OwnedFd) -> Result<Self> {
        let told = fstat(&fd);
        let kind = told.map(|told| FileType::from_raw_mode(told.st_mode));
        match kind.map_err(|error| Error::io("asking about a directory", error.into()))? {
            FileType::Directory => Ok(Self::of(driver, fd)),
            _ => Err(Error::Invalid(
                "the descriptor is not of a directory: attach it by Driver::file",
            )),
        }
    }

    fn of(driver: Rc<Reactor>, fd: OwnedFd) -> Self {
        let endpoint = Endpoint::unlisted(&driver.core.io, fd);
        Self { endpoint: Some(Rc::new(endpoint)), driver }
    }

    pub(super) fn name(&self, path: impl AsRef<Path>) -> Result<Name> {
        call::name(self.endpoint.clone(), path.as_ref())
    }

    fn change(&self, call: Call) -> Result<FileCall<()>> {
        FileCall::begin(&self.driver, call, call::nothing)
    }

    /// Opens a file (openat2(2)).
    ///
    /// An open of a FIFO waits for its other end, as by open(2); without a ring that blocks the thread
    /// (`O_NONBLOCK` in [`custom_flags`](OpenOptions::custom_flags) is for that).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for options that contradict each other, and for a path with a byte 0;
    /// [`Error::Busy`] when too many operations are under way. [`FileCall`] reports later errors.
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<FileCall<File>> {
        let call = Call::Open(self.name(path)?, options.how(false)?);
        FileCall::begin(&self.driver, call, call::file)
    }

    /// Opens a directory. Of the options `read` is needed; `beneath` and custom flags have a meaning.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_dir(
        &self,
        path: impl AsRef<Path>,
        options: &OpenOptions,
    ) -> Result<FileCall<Self>> {
        let call = Call::Open(self.name(path)?, options.how(true)?);
        FileCall::begin(&self.driver, call, |driver, answer| match answer {
            Answer::Descriptor(fd) => Self::of(Rc::clone(driver), fd),
            Answer::Done | Answer::Metadata(_) => unreachable!("a directory was opened"),
        })
    }

    /// Asks what the kernel knows of a file (statx(2)); of the target, if it is a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<FileCall<Metadata>> {
        self.ask(path, AtFlags::empty())
    }

    /// As [`metadata`](Self::metadata), of a symbolic link itself.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<FileCall<Metadata>> {
        self.ask(path, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn ask(&self, path: impl AsRef<Path>, flags: AtFlags) -> Result<FileCall<Metadata>> {
        let call = Call::Stat(self.name(path)?, flags, Box::new_uninit());
        FileCall::begin(&self.driver, call, call::metadata)
    }

    /// Gives what is called `from` here the name `to` there (renameat2(2)), in one step: nobody finds half of it. After
    /// a crash the change is there for sure once both directories have been [synced](Self::sync_all).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn rename(
        &self,
        from: impl AsRef<Path>,
        directory: &Self,
        to: impl AsRef<Path>,
        renaming: Renaming,
    ) -> Result<FileCall<()>> {
        let flags = match renaming {
            Renaming::Replace => RenameFlags::empty(),
            Renaming::NoReplace => RenameFlags::NOREPLACE,
            Renaming::Exchange => RenameFlags::EXCHANGE,
        };
        self.change(Call::Rename(self.name(from)?, directory.name(to)?, flags))
    }

    /// Removes the name of a file, and the file with its last name and descriptor (unlink(2)).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<FileCall<()>> {
        self.change(Call::Unlink(self.name(path)?, AtFlags::empty()))
    }

    /// Removes an empty directory (rmdir(2)).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<FileCall<()>> {
        self.change(Call::Unlink(self.name(path)?, AtFlags::REMOVEDIR))
    }

    /// Makes a directory with these permissions, of which the process's umask takes some away (mkdir(2)).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> Result<FileCall<()>> {
        if mode & !0o7777 != 0 {
            return Err(Error::Invalid("permissions are at most 0o7777"));
        }
        self.change(Call::MakeDirectory(self.name(path)?, Mode::from_raw_mode(mode)))
    }

    /// Puts the directory on its device (fsync(2)): names made, changed and removed before are then there after a crash.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`]; for the working directory, which has no descriptor: open `"."` by [`open_dir`](Self::open_dir).
    pub fn sync_all(&self) -> Result<FileCall<()>> {
        let Some(endpoint) = &self.endpoint else {
            return Err(Error::Invalid(
                "the working directory has no descriptor to sync: open \".\" by Directory::open_dir",
            ));
        };
        self.change(Call::Sync(Rc::clone(endpoint), false))
    }
}

impl AsFd for Directory {
    /// The descriptor; of the working directory `AT_FDCWD`, which calls that take a directory know.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.as_ref().map_or(CWD, |endpoint| endpoint.fd.as_fd())
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("fd", &self.as_fd()).finish_non_exhaustive()
    }
}
