//! Network namespaces: found by a user's word, entered for a moment.
//!
//! Kernel interface: setns(2) with CLONE_NEWNET, which acts on one thread. Capability: CAP_SYS_ADMIN.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Error;
use crate::error::file;

/// A network namespace, which lives at least as long as this.
///
/// ```no_run
/// use handoff_nic::Namespace;
///
/// # fn main() -> Result<(), handoff_nic::Error> {
/// let container = Namespace::find("4711")?; // of this process; or a name of `ip netns`, or a path
/// println!("{:?}", container.addresses()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
    /// Its inode, which identifies it.
    pub(crate) inode: u64,
    path: PathBuf,
}

impl Namespace {
    /// The namespace of a process, by its number; or the one with this name (`ip netns`) or at this path.
    ///
    /// # Errors
    ///
    /// [`Error::NoNamespace`] if there is none.
    pub fn find(of: &str) -> Result<Self, Error> {
        let (path, what) = match of {
            _ if of.parse::<u32>().is_ok() => {
                (format!("/proc/{of}/ns/net"), format!("no process {of}"))
            }
            _ if of.contains('/') => (of.to_owned(), format!("no network namespace at {of}")),
            _ => (
                format!("/run/netns/{of}"),
                format!(
                    "no network namespace \"{of}\" (ip netns list), and no process of this number"
                ),
            ),
        };
        let found = Self::open(path.into()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoNamespace { reason: what },
            _ => file(format!("opening the network namespace of {of}"))(error),
        })?;
        // A file that is no network namespace is not entered.
        found.run(|| ()).map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::INVAL.raw_os_error() => {
                Error::NoNamespace { reason: format!("{of} is no network namespace") }
            }
            _ => file(format!("entering the network namespace of {of}"))(error),
        })?;
        Ok(found)
    }

    /// The calling thread's.
    pub(crate) fn here() -> io::Result<Self> {
        Self::open("/proc/thread-self/ns/net".into())
    }

    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        let file = File::open(&path)?;
        let inode = file.metadata()?.ino();
        Ok(Self { file: Arc::new(file), inode, path })
    }

    /// Where it was found.
    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Runs `work` in the namespace, on a thread of its own.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let enter_and_work = || {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        thread::scope(|scope| {
            let ended = scope.spawn(enter_and_work).join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Makes `command` start its children in the namespace.
    pub fn attach<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let file = Arc::clone(&self.file);
        // SAFETY: between fork and exec only setns is called, which is a bare system call: no
        // allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(())
            })
        }
    }
}
