//! Calls about files and names that move no bytes.
//!
//! Minimum kernel: with a ring that of the ring (6.1), which has them all but `FTRUNCATE` (6.9, a call before); without one
//! 5.6 for paths that stay beneath a directory (`openat2`), any for all else. Capability: that of the call. Return signal:
//! the completion.
//!
//! Contracts:
//! - with a ring the thread waits for no disk: workers of the kernel make the calls. Without one the call is made in place,
//!   and blocks the thread as reads and writes of files do;
//! - an open file for which nobody waits any more is closed when it comes, and the kernel is asked to end the open. So is
//!   a question. What changes something goes on to its end;
//! - a long range goes as several requests. If it is cancelled, or nobody waits, the rest is left out.

use std::num::NonZeroU64;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use rustix::fs::{
    AtFlags, OFlags, fadvise, fallocate, fdatasync, fsync, ftruncate, linkat, mkdirat, openat,
    openat2, renameat_with, statx, unlinkat,
};
use rustix::io::Errno;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::op::{ASKED, Answer, FileCall, FileCallOp, Name, Op};
use crate::ring::endpoint::with_target;
use crate::ring::token::Stage;
use crate::ring::{Backend, Key, Ring, Token};

/// Starts a call; the caller has checked that there is room.
pub(crate) fn begin(core: &Core, call: FileCall) -> Key {
    let key = core.records.borrow_mut().insert(|| Op::FileCall(FileCallOp::new(call)));
    start(core, key);
    key
}

/// Starts the next request.
fn start(core: &Core, key: Key) {
    let used = {
        let mut records = core.records.borrow_mut();
        let op = records.file_call(key);
        match &core.io.backend {
            Backend::Ring(ring) if ring.borrow().truncates || !is_truncation(op) => {
                submit(&mut ring.borrow_mut(), key, op)
            }
            _ => make(op),
        }
    };
    core.wakes().attend();
    advance(core, key, used);
}

fn is_truncation(op: &mut FileCallOp) -> bool {
    matches!(op.call(), FileCall::SetLen(..))
}

fn submit(ring: &mut Ring, key: Key, op: &mut FileCallOp) -> Option<FileCall> {
    if let Err(error) = ring.make_room(1) {
        return op.end(Err(Error::io("submitting a call about a file", error)));
    }
    let data = Token { key, stage: Stage::FileCall }.to_user_data();
    // SAFETY: what the entry names is on the heap and the record's, or in the record itself, which keeps it in place until
    // the completion.
    unsafe { ring.push(&entry(op.call()).user_data(data)) };
    None
}

fn begin_of(name: &Name) -> Fd {
    Fd(name.begin().as_raw_fd())
}

fn entry(call: &mut FileCall) -> squeue::Entry {
    match call {
        FileCall::Open(name, how) => {
            let entry =
                opcode::OpenAt2::new(begin_of(name), name.path.as_ptr(), (&raw const *how).cast())
                    .build();
            // A ring first tries with O_NONBLOCK, by which a pipe does not wait for its other end.
            match how.flags().contains(OFlags::NONBLOCK) {
                true => entry,
                false => entry.flags(squeue::Flags::ASYNC),
            }
        }
        FileCall::Sync(file, data_only) => {
            let flags = if *data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
            with_target!(file, |fd| opcode::Fsync::new(fd).flags(flags).build())
        }
        FileCall::WriteBack(file, rest, flags) => {
            let (part, flags) = (rest.part(), *flags);
            with_target!(file, |fd| opcode::SyncFileRange::new(fd, part.len as u32)
                .offset(part.offset)
                .flags(flags)
                .build())
        }
        FileCall::Allocate(file, range, mode) => {
            with_target!(file, |fd| opcode::Fallocate::new(fd, range.len)
                .offset(range.offset)
                .mode(mode.bits() as i32)
                .build())
        }
        FileCall::SetLen(file, len) => {
            with_target!(file, |fd| opcode::Ftruncate::new(fd, *len).build())
        }
        FileCall::Advise(file, rest, advice) => {
            let part = rest.part();
            with_target!(file, |fd| opcode::Fadvise::new(
                fd,
                part.len as libc::off_t,
                *advice as i32
            )
            .offset(part.offset)
            .build())
        }
        FileCall::Stat(name, flags, room) => {
            opcode::Statx::new(begin_of(name), name.path.as_ptr(), room.as_mut_ptr().cast())
                .flags(flags.bits() as i32)
                .mask(ASKED.bits())
                .build()
        }
        FileCall::Rename(from, to, how) => opcode::RenameAt::new(
            begin_of(from),
            from.path.as_ptr(),
            begin_of(to),
            to.path.as_ptr(),
        )
        .flags(how.bits())
        .build(),
        FileCall::Unlink(name, flags) => opcode::UnlinkAt::new(begin_of(name), name.path.as_ptr())
            .flags(flags.bits() as i32)
            .build(),
        FileCall::MakeDirectory(name, mode) => {
            opcode::MkDirAt::new(begin_of(name), name.path.as_ptr())
                .mode(mode.as_raw_mode())
                .build()
        }
        FileCall::Link(file, to) => {
            opcode::LinkAt::new(begin_of(file), file.path.as_ptr(), begin_of(to), to.path.as_ptr())
                .flags(libc::AT_SYMLINK_FOLLOW)
                .build()
        }
    }
}

/// Makes the calls in place.
fn make(op: &mut FileCallOp) -> Option<FileCall> {
    loop {
        let result = call(op.call()).unwrap_or_else(|error| -error.raw_os_error());
        if let Some(over) = op.took(result) {
            return op.end(over);
        }
    }
}

/// The result of a call, in the form of a completion.
fn call(call: &mut FileCall) -> Result<i32, Errno> {
    match call {
        FileCall::Open(name, how) => {
            let (begin, path) = (name.begin(), &*name.path);
            // A filter may know nothing of openat2(2).
            let opened = match how.resolve().is_empty() {
                true => openat(begin, path, how.flags(), how.mode()),
                false => openat2(begin, path, how.flags(), how.mode(), how.resolve()),
            };
            // Whoever takes in the result owns it.
            return opened.map(|file| file.into_raw_fd());
        }
        FileCall::Sync(file, false) => fsync(&file.fd),
        FileCall::Sync(file, true) => fdatasync(&file.fd),
        FileCall::WriteBack(file, rest, flags) => {
            let part = rest.part();
            let (offset, len) = (part.offset as libc::off64_t, part.len as libc::off64_t);
            // SAFETY: the call names no memory.
            match unsafe { libc::sync_file_range(file.raw(), offset, len, *flags) } {
                0 => Ok(()),
                _ => {
                    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
                }
            }
        }
        FileCall::Allocate(file, range, mode) => {
            fallocate(&file.fd, *mode, range.offset, range.len)
        }
        FileCall::SetLen(file, len) => ftruncate(&file.fd, *len),
        FileCall::Advise(file, rest, advice) => {
            let part = rest.part();
            fadvise(&file.fd, part.offset, NonZeroU64::new(part.len), *advice)
        }
        FileCall::Stat(name, flags, room) => {
            statx(name.begin(), &*name.path, *flags, ASKED).map(|told| {
                room.write(told);
            })
        }
        FileCall::Rename(from, to, how) => {
            renameat_with(from.begin(), &*from.path, to.begin(), &*to.path, *how)
        }
        FileCall::Unlink(name, flags) => unlinkat(name.begin(), &*name.path, *flags),
        FileCall::MakeDirectory(name, mode) => mkdirat(name.begin(), &*name.path, *mode),
        FileCall::Link(file, to) => {
            linkat(file.begin(), &*file.path, to.begin(), &*to.path, AtFlags::SYMLINK_FOLLOW)
        }
    }
    .map(|()| 0)
}

/// The completion of the request under way.
pub(crate) fn completed(core: &Core, key: Key, result: i32) {
    let used = {
        let mut records = core.records.borrow_mut();
        let op = records.file_call(key);
        op.took(result).map(|over| op.end(over))
    };
    match used {
        Some(used) => advance(core, key, used),
        None => start(core, key),
    }
}

/// Hands the result to the holder, once the call is over.
pub(crate) fn take(core: &Core, key: Key) -> Option<Result<Answer>> {
    let (result, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.file_call(key);
        (op.tell()?, op.holder.leave())
    };
    advance(core, key, None);
    Some(result)
}

/// The holder goes.
pub(crate) fn let_go(core: &Core, key: Key) {
    let (only_tells, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.file_call(key);
        op.make_last();
        (op.only_tells(), op.holder.leave())
    };
    if only_tells {
        ask_to_end(core, key);
    }
    advance(core, key, None);
}

/// The call is to end early.
pub(crate) fn cancel(core: &Core, key: Key) {
    core.records.borrow_mut().file_call(key).make_last();
    ask_to_end(core, key);
}

/// Asks the kernel to end a call that is to end early, if it has that; also again where it did not find it.
pub(crate) fn ask_to_end(core: &Core, key: Key) {
    if core.records.borrow_mut().file_call(key).may_ask() {
        // There is a ring, which tells by a completion.
        let _ = core.cancel(Token { key, stage: Stage::FileCall });
    }
}

/// `used` is what the kernel had, if that is over now.
fn advance(core: &Core, key: Key, used: Option<FileCall>) {
    let mut records = core.records.borrow_mut();
    let op = records.file_call(key);
    if op.kernel_holds() {
        return;
    }
    core.news.set(true);
    let waker = op.holder.take_waker();
    let untold = op.holder.is_gone().then(|| op.tell());
    if untold.is_some() {
        records.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(records);
    drop((used, untold));
    core.wakes().wake(waker);
}
