//! Anonymous network namespaces, held by a file descriptor.
//!
//! Kernel interface: unshare(2) and setns(2) with CLONE_NEWNET, both of which act on one thread.

use std::{
    fs::{self, File},
    io,
    marker::PhantomData,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use super::rtnetlink::Rtnetlink;
use crate::error::TopologyError;
use crate::error::asked;

/// A network namespace without a name, with its loopback device up.
///
/// Clones hold the same namespace. It ends with the last clone, thread, child and socket in it.
///
/// ```no_run
/// use std::process::Command;
/// use handoff_testbed::{Namespace, TopologyError};
///
/// # fn main() -> Result<(), TopologyError> {
/// let namespace = Namespace::new()?;
/// let status = namespace.attach(Command::new("ip").arg("link")).status();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Namespace {
    fd: Arc<OwnedFd>,
}

/// Puts the thread back into the namespace it came from. Bound to its thread.
#[derive(Debug)]
pub struct NamespaceGuard {
    back: File,
    this_thread: PhantomData<*const ()>,
}

pub(super) fn this_threads_namespace() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// Moves the whole process into a user namespace in which it has every capability, under its own
/// user and group id, and into an empty network namespace that belongs to it.
///
/// Only for users other than root, and before the first thread starts: the kernel moves only
/// single-threaded processes. It cannot be undone: the process has no way back to the machine's network.
/// (It could not return from any namespace of its own to one that it does not own.)
///
/// # Errors
///
/// [`TopologyError::NotPermitted`] where the kernel forbids user namespaces or threads exist.
pub fn enter_user_namespace() -> Result<(), TopologyError> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    unshare_once_alone(UnshareFlags::NEWUSER | UnshareFlags::NEWNET).map_err(|errno| {
        TopologyError::NotPermitted {
            reason: match errno {
                Errno::INVAL => {
                    "a user namespace must be entered before threads are started".into()
                }
                Errno::NOSPC | Errno::PERM => format!("user namespaces are forbidden: {errno}"),
                other => format!("no user namespace: {other}"),
            },
        }
    })?;
    // A group can be mapped without privileges only once setgroups is given up.
    fs::write("/proc/self/setgroups", "deny").map_err(asked("give up setgroups"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(asked("map the group"))?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(asked("map the user"))
}

/// A joined thread still counts for some microseconds as one of the process.
fn unshare_once_alone(flags: UnshareFlags) -> Result<(), Errno> {
    for _ in 0..50 {
        // SAFETY: neither flag unshares the file table, which is what makes unsharing unsound.
        match unsafe { unshare_unsafe(flags) } {
            Err(Errno::INVAL) => thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
    Err(Errno::INVAL)
}

impl Namespace {
    /// Makes a namespace with only a loopback device, which is up.
    ///
    /// Without CAP_SYS_ADMIN over its network, the process first leaves that network by
    /// [`enter_user_namespace`], which works while it has one thread.
    ///
    /// # Errors
    ///
    /// [`TopologyError::NotPermitted`] if neither is allowed.
    pub fn new() -> Result<Self, TopologyError> {
        let fd = match unshare_in_scratch_thread() {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                enter_user_namespace()?;
                unshare_in_scratch_thread()
            }
            done => done,
        }
        .map_err(asked("make a network namespace"))?;
        let namespace = Self { fd: Arc::new(fd) };
        namespace.run(|| Rtnetlink::open()?.set_up("lo"))??;
        Ok(namespace)
    }

    /// Moves the calling thread into the namespace until the guard is dropped.
    ///
    /// Sockets stay in the namespace they were opened in. Threads started meanwhile inherit it.
    ///
    /// # Errors
    ///
    /// If the thread has no CAP_SYS_ADMIN.
    pub fn enter_thread(&self) -> Result<NamespaceGuard, TopologyError> {
        let back = this_threads_namespace().map_err(asked("open the thread's own namespace"))?;
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(asked("enter a network namespace"))?;
        Ok(NamespaceGuard { back, this_thread: PhantomData })
    }

    /// Runs `work` on the calling thread, inside the namespace.
    ///
    /// # Errors
    ///
    /// As [`Namespace::enter_thread`].
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, TopologyError> {
        let _inside = self.enter_thread()?;
        Ok(work())
    }

    /// Starts a thread that stays in the namespace for good, so it may also give up the capabilities for
    /// leaving.
    ///
    /// # Errors
    ///
    /// As [`Namespace::enter_thread`], or if no thread can be started.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, TopologyError> {
        // A thread begins in its parent's namespace.
        let _inside = self.enter_thread()?;
        thread::Builder::new().name(name.into()).spawn(work).map_err(asked("start a thread"))
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes `command` start its children inside the namespace.
    pub fn attach<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let fd = Arc::clone(&self.fd);
        // SAFETY: between fork and exec only setns is called, which is a bare system call: no
        // allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(())
            })
        }
    }
}

impl Drop for NamespaceGuard {
    fn drop(&mut self) {
        let back = move_into_link_name_space(self.back.as_fd(), Some(LinkNameSpaceType::Network));
        // To continue would mean to send into the wrong network. A thread that gave up its capabilities
        // meanwhile gets here; such work belongs into `Namespace::spawn`.
        if let Err(errno) = back
            && !thread::panicking()
        {
            panic!("the thread cannot leave its network namespace: {errno}");
        }
    }
}

/// Makes the namespace, and checks that a thread can come back from it.
fn unshare_in_scratch_thread() -> io::Result<OwnedFd> {
    let made = thread::Builder::new().name("netns".into()).spawn(|| -> io::Result<OwnedFd> {
        let own = this_threads_namespace()?;
        // SAFETY: NEWNET does not unshare the file table, which is what makes unsharing unsound.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        let made = this_threads_namespace()?;
        move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(made.into())
    })?;
    made.join().map_err(|_| io::Error::other("the thread that makes namespaces panicked"))?
}
