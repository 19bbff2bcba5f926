//! A call about a file or a name that moves no bytes: open, sync, rename and the like.
//!
//! Contracts:
//! - the record has paths, and the room for what the kernel tells, until the kernel is done;
//! - a descriptor that the kernel has made belongs to the record until the holder takes it, and closes with the record.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::rc::Rc;

use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, ResolveFlags, Statx,
    StatxFlags,
};

use super::waiter::Waiter;
use crate::error::{Error, Result};
use crate::ring::Endpoint;

/// The most bytes of one request about a range: requests of a ring have no room for 4 GiB. Whole pages of any size.
const PART: u64 = 2 << 30;

/// How often a path that must stay beneath its directory is followed while others rename directories on it.
const TRIES: u8 = 16;

/// How often the kernel is asked to end a request: it may not find one that it is about to try again.
const ASKS: u8 = 8;

/// The kernel's internal error for a call cut short by a signal, which requests of a ring may end with.
const ERESTARTSYS: i32 = 512;

/// What is asked of the kernel about a file.
pub(crate) const ASKED: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::from_bits_retain(libc::STATX_DIOALIGN | libc::STATX_WRITE_ATOMIC));

/// A path, and the directory where it begins: the process's working directory if there is none.
pub(crate) struct Name {
    pub(crate) directory: Option<Rc<Endpoint>>,
    pub(crate) path: CString,
}

impl Name {
    pub(crate) fn begin(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, |directory| directory.fd.as_fd())
    }
}

/// How to open, laid out as `struct open_how`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

// `struct open_how` and `struct statx`.
const _: () = assert!(size_of::<How>() == 24 && size_of::<Statx>() == 256);

impl How {
    pub(crate) fn new(flags: OFlags, mode: Mode, resolve: ResolveFlags) -> Self {
        Self {
            flags: flags.bits().into(),
            mode: mode.as_raw_mode().into(),
            resolve: resolve.bits(),
        }
    }

    pub(crate) fn flags(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags as u32)
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode as u32)
    }

    pub(crate) fn resolve(&self) -> ResolveFlags {
        ResolveFlags::from_bits_retain(self.resolve)
    }
}

/// A range of a file, of which the rest is still to be done.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    pub(crate) offset: u64,
    /// 0 up to the end of the file.
    pub(crate) len: u64,
}

impl Rest {
    /// What one request takes.
    pub(crate) fn part(self) -> Self {
        Self { offset: self.offset, len: self.len.min(PART) }
    }

    /// That part is done; returns whether there is more.
    fn goes_on(&mut self) -> bool {
        let part = self.part().len;
        self.offset += part;
        self.len -= part;
        self.len > 0
    }
}

/// What is asked of the kernel.
pub(crate) enum FileCall {
    Open(Name, How),
    /// All of a file, or only what is needed to read its bytes again.
    Sync(Rc<Endpoint>, bool),
    /// By flags of sync_file_range(2).
    WriteBack(Rc<Endpoint>, Rest, u32),
    Allocate(Rc<Endpoint>, Rest, FallocateFlags),
    SetLen(Rc<Endpoint>, u64),
    Advise(Rc<Endpoint>, Rest, Advice),
    Stat(Name, AtFlags, Box<MaybeUninit<Statx>>),
    Rename(Name, Name, RenameFlags),
    Unlink(Name, AtFlags),
    MakeDirectory(Name, Mode),
    /// Gives a name to what has this one.
    Link(Name, Name),
}

/// What came of it.
pub(crate) enum Answer {
    Done,
    Descriptor(OwnedFd),
    Metadata(Box<Statx>),
}

pub(crate) struct FileCallOp {
    /// `None` when it is over.
    call: Option<FileCall>,
    state: State,
    pub(crate) holder: Waiter,
    /// No request follows: the operation is to end, or nobody can turn the driver.
    is_last: bool,
    tries: u8,
    asks: u8,
}

enum State {
    /// The kernel has it, or is about to.
    InKernel,
    Over(Result<Answer>),
    /// The same, and its holder has the result.
    Told,
}

impl FileCallOp {
    pub(crate) fn new(call: FileCall) -> Self {
        Self {
            call: Some(call),
            state: State::InKernel,
            holder: Waiter::Polls,
            is_last: false,
            tries: TRIES,
            asks: ASKS,
        }
    }

    /// What is under way.
    pub(crate) fn call(&mut self) -> &mut FileCall {
        self.call.as_mut().expect("it is not over")
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        matches!(self.state, State::InKernel)
    }

    /// Whether the kernel has no memory of it.
    pub(crate) fn names_no_memory(&self) -> bool {
        match &self.call {
            None => true,
            Some(call) => call.file().is_some(),
        }
    }

    pub(crate) fn make_last(&mut self) {
        self.is_last = true;
    }

    /// Whether the kernel is to be asked once more to end it.
    pub(crate) fn may_ask(&mut self) -> bool {
        let may = self.kernel_holds() && self.is_last && self.asks > 0;
        self.asks -= u8::from(may);
        may
    }

    /// Whether nothing is changed if it ends because nobody waits for it.
    pub(crate) fn only_tells(&self) -> bool {
        matches!(self.call, Some(FileCall::Open(..) | FileCall::Stat(..)))
    }

    /// It is over. Returns what the kernel used, to be dropped where that may use the driver.
    #[must_use]
    pub(crate) fn end(&mut self, result: Result<Answer>) -> Option<FileCall> {
        self.state = State::Over(result);
        self.call.take()
    }

    /// The result, for its holder.
    pub(crate) fn tell(&mut self) -> Option<Result<Answer>> {
        match std::mem::replace(&mut self.state, State::Told) {
            State::Over(result) => Some(result),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Takes the outcome of one request; returns whether another is needed, or else what it came to.
    pub(crate) fn took(&mut self, result: i32) -> Option<Result<Answer>> {
        let is_last = self.is_last;
        let again = match -result {
            libc::EINTR | ERESTARTSYS => true,
            libc::EAGAIN => self.try_again(),
            libc::ECANCELED => return Some(Err(Error::Canceled { done: 0 })),
            1.. => false,
            _ => self.goes_on(),
        };
        if again {
            return is_last.then_some(Err(Error::Canceled { done: 0 }));
        }
        let call = self.call();
        if result < 0 {
            return Some(Err(call.error(-result)));
        }
        Some(Ok(match call {
            FileCall::Open(..) => {
                // SAFETY: the kernel has made the descriptor for us, and told of it once.
                Answer::Descriptor(unsafe { OwnedFd::from_raw_fd(result) })
            }
            FileCall::Stat(_, _, room) => {
                let room = std::mem::replace(room, Box::new(MaybeUninit::uninit()));
                // SAFETY: the kernel has filled it, and all bytes are valid numbers.
                Answer::Metadata(unsafe { room.assume_init() })
            }
            _ => Answer::Done,
        }))
    }

    /// Counts a path that could not be followed because others renamed directories on it; returns whether to follow it
    /// again.
    fn try_again(&mut self) -> bool {
        let again = match self.call() {
            FileCall::Open(_, how) => how.resolve != 0 && self.tries > 0,
            _ => false,
        };
        self.tries -= u8::from(again);
        again
    }

    /// A part of a range is done; returns whether there is more.
    fn goes_on(&mut self) -> bool {
        match self.call() {
            FileCall::WriteBack(_, rest, _) | FileCall::Advise(_, rest, _) => rest.goes_on(),
            _ => false,
        }
    }
}

impl FileCall {
    /// The open file that it is about; `None` if it is about names.
    fn file(&self) -> Option<&Rc<Endpoint>> {
        match self {
            Self::Sync(file, _)
            | Self::WriteBack(file, ..)
            | Self::Allocate(file, ..)
            | Self::SetLen(file, _)
            | Self::Advise(file, ..) => Some(file),
            Self::Open(..)
            | Self::Stat(..)
            | Self::Rename(..)
            | Self::Unlink(..)
            | Self::MakeDirectory(..)
            | Self::Link(..) => None,
        }
    }

    #[cold]
    fn error(&self, errno: i32) -> Error {
        let of_name = |action, name: &Name, hint| named(action, &[name], hint, errno);
        match self {
            Self::Open(name, how) => match errno {
                libc::EMFILE | libc::ENFILE => Error::descriptor("opening a file", errno),
                _ => of_name("opening", name, how.hint(errno)),
            },
            Self::Stat(name, flags, _) if flags.contains(AtFlags::EMPTY_PATH) => {
                debug_assert!(name.path.is_empty());
                Error::errno("asking about a file", errno)
            }
            Self::Stat(name, ..) => of_name("asking about", name, ""),
            Self::Unlink(name, flags) if flags.contains(AtFlags::REMOVEDIR) => {
                of_name("removing the directory", name, "")
            }
            Self::Unlink(name, _) => of_name("removing", name, ""),
            Self::MakeDirectory(name, _) => of_name("making the directory", name, ""),
            Self::Rename(from, to, how) => {
                let hint = match errno {
                    libc::EXDEV => "both names must lie in one file system",
                    libc::EINVAL if !how.is_empty() => {
                        "the file system may not know this way to rename"
                    }
                    _ => "",
                };
                named("renaming", &[from, to], hint, errno)
            }
            Self::Link(_, to) => {
                let hint = match errno {
                    libc::EXDEV => "the name must lie in the file system of the file",
                    libc::ENOENT => {
                        "the directory must be there, /proc mounted, and a file without names opened as temporary"
                    }
                    _ => "",
                };
                of_name("naming a file", to, hint)
            }
            Self::Sync(..) => Error::errno("syncing a file", errno),
            Self::WriteBack(..) => Error::errno("writing back a range of a file", errno),
            Self::Allocate(..) if errno == libc::EOPNOTSUPP => {
                Error::errno("allocating (the file system does not know this way)", errno)
            }
            Self::Allocate(..) => Error::errno("allocating", errno),
            Self::SetLen(..) => Error::errno("setting the length of a file", errno),
            Self::Advise(..) => Error::errno("advising about a file", errno),
        }
    }
}

impl How {
    /// What an error of opening may mean.
    fn hint(&self, errno: i32) -> &'static str {
        let (flags, beneath) = (self.flags(), self.resolve != 0);
        match errno {
            libc::EXDEV if beneath => "the path leads out of its directory, and is to stay beneath",
            libc::ELOOP if beneath => {
                "the path leads through a magic link or too many symbolic links, and is to stay beneath its directory"
            }
            libc::EAGAIN if beneath => "others rename directories on its way all the time",
            libc::ENOSYS if beneath => {
                "paths that stay beneath a directory need openat2, Linux 5.6"
            }
            libc::EINVAL if flags.contains(OFlags::DIRECT) => {
                "the file system may have no O_DIRECT: open it without"
            }
            libc::EOPNOTSUPP | libc::EISDIR if flags.contains(OFlags::TMPFILE) => {
                "the file system has no files without names: make one with a name, and rename it"
            }
            _ => "",
        }
    }
}

fn named(action: &'static str, names: &[&Name], hint: &'static str, errno: i32) -> Error {
    let names: Vec<_> = names.iter().map(|name| name.path.to_string_lossy()).collect();
    let source = std::io::Error::from_raw_os_error(errno);
    Error::Path { action, path: names.join(" to "), hint, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_range_goes_in_parts_that_a_request_has_room_for() {
        for len in [0, 1, PART, PART + 1, 9 << 30] {
            let mut rest = Rest { offset: 4096, len };
            let mut done = 0;
            loop {
                let part = rest.part();
                assert_eq!(part.offset, 4096 + done);
                assert!(u32::try_from(part.len).is_ok() && (part.len > 0 || len == 0));
                done += part.len;
                if !rest.goes_on() {
                    break;
                }
            }
            assert_eq!(done, len);
        }
    }
}
