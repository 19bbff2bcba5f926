//! The served directory: from a request's path to an open file, and never out of it.
//!
//! Contracts:
//! - the kernel keeps every step of a path beneath the directory (`RESOLVE_BENEATH`, Linux 5.6), even while files
//!   and links are exchanged;
//! - names with a dot are hidden, whether a path or a link leads there;
//! - each request sees the directory that its path leads to by then.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use handoff_command::Failure;
use percent_encoding::percent_decode_str;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlink, stat,
};
use rustix::io::Errno;

/// How often to retry while files are being exchanged.
const LOOKS: usize = 16;

/// The directory.
#[derive(Clone)]
pub(super) struct Root {
    path: PathBuf,
    opened: RefCell<Arc<Opened>>,
}

/// What its path led to.
struct Opened {
    directory: OwnedFd,
    device_and_inode: (u64, u64),
}

/// What a path leads to.
pub(super) enum Found<'a> {
    File {
        file: File,
        stat: Stat,
        /// Its name, which gives the type of its content.
        name: Cow<'a, [u8]>,
    },
    /// A directory whose path lacks the final slash.
    Directory,
    Nothing(Missing),
}

/// Why nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    NoName,
    NotThere,
    NotAllowed,
    /// Usually out of descriptors.
    NotNow(Errno),
}

impl Opened {
    fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        let device_and_inode = identity(&fstat(&directory)?);
        Ok(Self { directory, device_and_inode })
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Root {
    /// Opens a directory.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let opened = Opened::open(path).map_err(|error| {
            let path = path.display();
            match error {
                Errno::NOTDIR => Failure::usage(format!("{path} is no directory")),
                Errno::NOENT => Failure::usage(format!("there is no directory {path}")),
                error => Failure::failed(format!("opening the directory {path}: {error}")),
            }
        })?;
        match open_beneath(opened.directory.as_fd(), b".", ResolveFlags::empty()) {
            Ok(_) => Ok(Self { path: path.to_owned(), opened: RefCell::new(Arc::new(opened)) }),
            Err(Errno::NOSYS | Errno::PERM) => Err(Failure::not_possible(
                "opening files beneath a directory alone takes openat2(2), which Linux has from 5.6 on; some \
                 containers forbid it, and so do DynamicUser= and RestrictSUIDSGID= of systemd",
            )),
            Err(error) => Err(Failure::failed(format!("reading {}: {error}", path.display()))),
        }
    }

    /// The directory that the path leads to now: a link may have been switched, or the directory made anew.
    fn now(&self) -> Result<Arc<Opened>, Errno> {
        let mut opened = self.opened.borrow_mut();
        if identity(&stat(&self.path)?) != opened.device_and_inode {
            *opened = Arc::new(Opened::open(&self.path)?);
        }
        Ok(Arc::clone(&opened))
    }

    /// Finds the file of a request's path.
    pub(super) fn find<'a>(&self, path: &'a str) -> Found<'a> {
        let path = Cow::from(percent_decode_str(path.trim_start_matches('/')));
        if path.contains(&0) {
            return Found::Nothing(Missing::NoName);
        }
        // Neither `..` nor hidden files.
        if has_hidden(&path) {
            return Found::Nothing(Missing::NotThere);
        }
        let in_directory = path.is_empty() || path.ends_with(b"/");
        let name = match in_directory {
            true => [&path, &b"index.html"[..]].concat().into(),
            false => path,
        };
        match self.open_file(&name) {
            Ok((file, stat)) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Found::File { file: file.into(), stat, name },
                FileType::Directory if !in_directory => Found::Directory,
                _ => Found::Nothing(Missing::NotThere),
            },
            Err(error) => Found::Nothing(match error {
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::XDEV
                | Errno::NAMETOOLONG
                | Errno::NXIO
                | Errno::NODEV => Missing::NotThere,
                Errno::ACCESS | Errno::PERM => Missing::NotAllowed,
                error => Missing::NotNow(error),
            }),
        }
    }

    fn open_file(&self, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
        let opened = self.now()?;
        let directory = opened.directory.as_fd();
        let file = match open_beneath(directory, name, ResolveFlags::NO_SYMLINKS) {
            // There is a link on the way.
            Err(Errno::LOOP) => {
                let file = open_beneath(directory, name, ResolveFlags::empty())?;
                if leads_to_hidden(directory, file.as_fd())? {
                    return Err(Errno::NOENT);
                }
                file
            }
            opened => opened?,
        };
        let stat = fstat(&file)?;
        Ok((file, stat))
    }
}

fn open_beneath(
    directory: BorrowedFd<'_>,
    name: &[u8],
    more: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    // A pipe or device does not block the thread.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | more;
    let mut opened = Err(Errno::AGAIN);
    for _ in 0..LOOKS {
        opened = openat2(directory, name, flags, Mode::empty(), beneath);
        if !matches!(opened, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    opened
}

/// Whether a path has `..`, or a name that is not served.
fn has_hidden(path: &[u8]) -> bool {
    let mut names = path.split(|byte| *byte == b'/');
    names.any(|name| name.starts_with(b".") && name != b".well-known")
}

/// Whether the kernel's name of an open file has such a name, beneath the directory.
fn leads_to_hidden(directory: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let name = |of: BorrowedFd<'_>| readlink(format!("/proc/self/fd/{}", of.as_raw_fd()), []);
    let (directory, file) = (name(directory)?, name(file)?);
    let beneath = file.to_bytes().strip_prefix(directory.to_bytes());
    Ok(beneath.is_none_or(has_hidden))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn found(root: &Root, path: &str) -> String {
        match root.find(path) {
            Found::File { file, .. } => std::io::read_to_string(file).expect("reads"),
            Found::Directory => "a directory".to_owned(),
            Found::Nothing(missing) => format!("{missing:?}"),
        }
    }

    #[test]
    fn nothing_outside_is_found() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path().join("root");
        fs::create_dir_all(dir.join("sub dir")).expect("makes");
        fs::create_dir_all(dir.join(".well-known")).expect("makes");
        fs::create_dir_all(dir.join(".git")).expect("makes");
        for (name, text) in [
            ("root/a", "inside"),
            ("root/index.html", "index"),
            ("root/sub dir/b", "below"),
            ("root/.hidden", "hidden"),
            ("root/.well-known/c", "known"),
            ("root/.git/config", "hidden"),
            ("secret", "outside"),
        ] {
            fs::write(place.path().join(name), text).expect("writes");
        }
        symlink("../secret", dir.join("out")).expect("links");
        symlink(place.path().join("secret"), dir.join("absolute")).expect("links");
        symlink("/proc/self/root", dir.join("proc")).expect("links");
        symlink("sub dir/b", dir.join("in")).expect("links");
        symlink("circle", dir.join("circle")).expect("links");
        symlink(".hidden", dir.join("shown")).expect("links");
        symlink(".git", dir.join("source")).expect("links");
        symlink(".well-known", dir.join("known")).expect("links");
        rustix::fs::mknodat(CWD, dir.join("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("makes");
        let root = Root::open(&dir).expect("opens");
        for (path, told) in [
            ("/a", "inside"),
            ("//a", "inside"),
            ("/%61", "inside"),
            ("/", "index"),
            ("/sub%20dir/b", "below"),
            ("/sub%20dir%2fb", "below"),
            ("/in", "below"),
            ("/sub%20dir", "a directory"),
            ("/sub%20dir/", "NotThere"),
            ("/.well-known/c", "known"),
            ("/../secret", "NotThere"),
            ("/..%2fsecret", "NotThere"),
            ("/%2e%2e/secret", "NotThere"),
            ("/sub%20dir/../../secret", "NotThere"),
            ("/sub%20dir/../a", "NotThere"),
            ("/.hidden", "NotThere"),
            ("/shown", "NotThere"),
            ("/source", "NotThere"),
            ("/source/config", "NotThere"),
            ("/known/c", "known"),
            ("/./a", "NotThere"),
            ("/out", "NotThere"),
            ("/absolute", "NotThere"),
            ("/proc/etc/passwd", "NotThere"),
            ("/circle", "NotThere"),
            ("/pipe", "NotThere"),
            ("/a/", "NotThere"),
            ("/a%00", "NoName"),
            ("/%zz", "NotThere"),
            ("/%", "NotThere"),
        ] {
            assert_eq!(found(&root, path), told, "{path}");
        }
        let long = format!("/{}", "x".repeat(5_000));
        assert_eq!(found(&root, &long), "NotThere");
        // One that is exchanged.
        let release = |name: &str| {
            let release = place.path().join(name);
            fs::create_dir(&release).expect("makes");
            fs::write(release.join("a"), name).expect("writes");
        };
        let current = place.path().join("current");
        release("one");
        symlink("one", &current).expect("links");
        let root_of_link = Root::open(&current).expect("opens");
        assert_eq!(found(&root_of_link, "/a"), "one");
        release("two");
        fs::remove_file(&current).expect("removes");
        assert_eq!(found(&root_of_link, "/a"), "NotThere");
        symlink("two", &current).expect("links");
        assert_eq!(found(&root_of_link, "/a"), "two");
        fs::remove_dir_all(place.path().join("two")).expect("removes");
        release("two");
        assert_eq!(found(&root_of_link, "/a"), "two");
        assert_eq!(Root::open(&dir.join("a")).err().map(|it| it.code()), Some(2));
        assert_eq!(Root::open(&dir.join("none")).err().map(|it| it.code()), Some(2));
    }
}
