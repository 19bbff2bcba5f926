//! How a file is opened.

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::error::{Error, Result};
use crate::op::How;

/// How a file is opened, by [`Driver::open`](crate::Driver::open) or [`Directory::open`](crate::Directory::open): as
/// std's type of that name, with what storage engines need. The descriptor always closes with execve(2).
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver) -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::OpenOptions;
///
/// // Past the page cache, and made if it is not there.
/// let options = OpenOptions::new().read(true).write(true).create(true).direct(true).clone();
/// let file = driver.open("log", &options)?.await?;
/// println!("aligned to {:?}", file.alignment());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    direct: bool,
    temporary: bool,
    beneath: bool,
    mode: u32,
    custom_flags: i32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Nothing is asked for; [`mode`](Self::mode) is 0o666.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            direct: false,
            temporary: false,
            beneath: false,
            mode: 0o666,
            custom_flags: 0,
        }
    }

    /// Whether the file is read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Whether the file is written.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Whether all writes go to the file's end. [`RwFlags::APPEND`](crate::RwFlags::APPEND) does that for one write.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Whether a file that is there loses its bytes.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Whether the file is made if it is not there.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Whether the file is made, and must not be there before.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Whether reads and writes go past the page cache (`O_DIRECT`). Then they must be
    /// [aligned](crate::File::alignment).
    pub fn direct(&mut self, direct: bool) -> &mut Self {
        self.direct = direct;
        self
    }

    /// Whether a file without a name is made, in the directory that the path names (`O_TMPFILE`). It goes with its last
    /// descriptor, unless [`File::link`](crate::File::link) gives it a name.
    pub fn temporary(&mut self, temporary: bool) -> &mut Self {
        self.temporary = temporary;
        self
    }

    /// Whether the path must stay beneath the directory where it begins, also by its symbolic links, and may lead
    /// through no magic link such as `/proc/self/fd/3` (`RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS` of openat2(2),
    /// Linux 5.6). An absolute path never stays beneath.
    pub fn beneath(&mut self, beneath: bool) -> &mut Self {
        self.beneath = beneath;
        self
    }

    /// The permissions of a file that is made; the process's umask takes some away.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Further flags of open(2), such as `O_NOFOLLOW`; none about access.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// For the kernel; of a directory if it must be one.
    pub(crate) fn how(&self, directory: bool) -> Result<How> {
        let invalid = |reason| Err(Error::Invalid(reason));
        let writes = self.write || self.append;
        let makes = self.create || self.create_new;
        if directory && (writes || makes || self.truncate || self.temporary || self.direct) {
            return invalid(
                "a directory is opened for reading, and is made by Directory::create_dir",
            );
        }
        if !self.read && !writes {
            return invalid("a file is opened for reading, writing or appending: say which");
        }
        if !writes && (makes || self.truncate || self.temporary) {
            return invalid(
                "only who writes makes a file or takes its bytes: ask for write or append, too",
            );
        }
        if self.append && self.truncate {
            return invalid(
                "who appends takes no bytes from the file: leave out append or truncate",
            );
        }
        if self.temporary && (makes || self.truncate) {
            return invalid("a temporary file is made always, empty, and without a name");
        }
        if self.custom_flags & (libc::O_ACCMODE | libc::O_PATH) != 0 {
            return invalid("custom flags are not about access: use read, write and append");
        }
        if self.mode & !0o7777 != 0 {
            return invalid("permissions are at most 0o7777");
        }
        let mut flags = OFlags::from_bits_retain(self.custom_flags as u32)
            | OFlags::CLOEXEC
            | match (self.read, writes) {
                (true, true) => OFlags::RDWR,
                (_, true) => OFlags::WRONLY,
                (_, false) => OFlags::RDONLY,
            };
        flags.set(OFlags::APPEND, self.append);
        flags.set(OFlags::DIRECT, self.direct);
        flags.set(OFlags::TRUNC, self.truncate);
        if self.create_new {
            flags |= OFlags::CREATE | OFlags::EXCL;
        } else if self.create {
            flags |= OFlags::CREATE;
        }
        if self.temporary {
            flags |= OFlags::TMPFILE;
        }
        if directory {
            flags |= OFlags::DIRECTORY;
        }
        let resolve = match self.beneath {
            true => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            false => ResolveFlags::empty(),
        };
        let mode = if makes || self.temporary { self.mode } else { 0 };
        Ok(How::new(flags, Mode::from_raw_mode(mode), resolve))
    }
}
