//! Calls about files and names that move no bytes: open, sync, allocate, rename and the like.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::{Rc, Weak};

use handoff::{
    Advice, Allocation, Directory, FileCall, Metadata, OpenOptions, Renaming, WriteBack,
};

use crate::boundary::{Failure, check, enter, put};
use crate::driver::{self, State};
use crate::event::{HANDOFF_EVENT_CALLED, HANDOFF_EVENT_OPENED, handoff_event};
use crate::file::OpenFile;
use crate::handles::{
    self, Kind, handoff_directory, handoff_driver, handoff_file, handoff_handle, handoff_operation,
};
use crate::operation::{self, Cancels, Told};

/// The path stays beneath the directory where it begins, also by its symbolic links, and leads through no magic link.
pub const HANDOFF_OPEN_BENEATH: u32 = 1;

/// Only what is needed to read the bytes again, as by fdatasync(2).
pub const HANDOFF_SYNC_DATA: u32 = 1;

/// A range gets room, and a file that is shorter grows.
pub const HANDOFF_ALLOCATE_GROW: u32 = 0;
/// The same, and the file keeps its length.
pub const HANDOFF_ALLOCATE_KEEP_SIZE: u32 = 1;
/// Its bytes become zero, and its room goes.
pub const HANDOFF_ALLOCATE_PUNCH_HOLE: u32 = 2;
/// Its bytes become zero, and it has room; a file that is shorter grows.
pub const HANDOFF_ALLOCATE_ZERO: u32 = 3;
/// The same, and the file keeps its length.
pub const HANDOFF_ALLOCATE_ZERO_KEEP_SIZE: u32 = 4;

/// The kernel begins to write the range's changed pages.
pub const HANDOFF_WRITE_BACK_BEGIN: u32 = 0;
/// It has written them.
pub const HANDOFF_WRITE_BACK_FINISH: u32 = 1;

/// What has the new name loses it.
pub const HANDOFF_RENAME_REPLACE: u32 = 0;
/// If something has the new name, the call fails with `-EEXIST`.
pub const HANDOFF_RENAME_NO_REPLACE: u32 = 1;
/// What has the new name gets the old one.
pub const HANDOFF_RENAME_EXCHANGE: u32 = 2;

/// What the kernel knows of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct handoff_metadata {
    /// Bytes of the file.
    pub length: u64,
    /// Bytes that it takes on its device.
    pub allocated: u64,
    /// The number of the file on its device.
    pub inode: u64,
    /// Major and minor number of the device.
    pub device_major: u32,
    /// See above.
    pub device_minor: u32,
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// The owner.
    pub user: u32,
    /// The owner's group.
    pub group: u32,
    /// What addresses and lengths of memory are aligned to for direct reads and writes, in bytes; 0 if nobody says.
    pub memory_alignment: u32,
    /// The same for offsets in the file.
    pub block_alignment: u32,
}

struct OpenDirectory {
    directory: Directory,
    state: Rc<State>,
}

impl Kind for Rc<OpenDirectory> {
    const NAME: &'static str = "a directory";
}

/// Begins to open a file, by a path that begins at `directory`; 0 is the process's working directory. `flags` and `mode`
/// are those of open(2); with `O_DIRECTORY` a directory is opened, for calls by names. `how` is 0 or
/// `HANDOFF_OPEN_BENEATH`. `HANDOFF_EVENT_OPENED` has the file's or directory's handle.
///
/// `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to be closed in any case.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `path` is a string; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_open(
    driver: handoff_driver,
    directory: handoff_directory,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    how: u32,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let (from, state) = place(driver, directory)?;
        // SAFETY: the caller vouches for it.
        let path = unsafe { self::path(path) }?;
        let options = options(flags, mode, how)?;
        let event = handoff_event::new(HANDOFF_EVENT_OPENED, user_data);
        let begin = || match flags & libc::O_DIRECTORY != 0
            && flags & libc::O_TMPFILE != libc::O_TMPFILE
        {
            true => Ok(follow(
                &state,
                from.open_dir(path, &options)?,
                event,
                |event, state, directory| {
                    state.tell_with_handle(event, |state| {
                        handles::insert(Rc::new(OpenDirectory {
                            directory,
                            state: Rc::clone(state),
                        }))
                    });
                },
            )),
            false => Ok(follow(&state, from.open(path, &options)?, event, |event, state, file| {
                state.tell_with_handle(event, |state| {
                    handles::insert(Rc::new(OpenFile { file, state: Rc::clone(state) }))
                });
            })),
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begin) }
    })
}

/// Begins to put a file or directory on its device (fsync(2)). `how` is 0 or `HANDOFF_SYNC_DATA`; a directory knows 0 only.
/// `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_sync(
    file: handoff_handle,
    how: u32,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let data_only = match how {
            0 => false,
            HANDOFF_SYNC_DATA => true,
            _ => return Err(Failure::invalid("how is neither 0 nor HANDOFF_SYNC_DATA")),
        };
        if let Some(directory) = handles::get_if::<Rc<OpenDirectory>>(file)? {
            if data_only {
                return Err(Failure::invalid("a directory is synced as a whole: how is 0"));
            }
            // SAFETY: the caller vouches for it.
            return unsafe {
                call(&directory.state, user_data, operation, || directory.directory.sync_all())
            };
        }
        let file = handles::get::<Rc<OpenFile>>(file)?;
        let begin = || if data_only { file.file.sync_data() } else { file.file.sync_all() };
        // SAFETY: the caller vouches for it.
        unsafe { call(&file.state, user_data, operation, begin) }
    })
}

/// Begins to give a range of a file room, or to take its bytes (fallocate(2)). `how` is one of `HANDOFF_ALLOCATE_...`.
/// `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_allocate(
    file: handoff_file,
    offset: u64,
    length: u64,
    how: u32,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let file = handles::get::<Rc<OpenFile>>(file)?;
        let how = match how {
            HANDOFF_ALLOCATE_GROW => Allocation::Grow,
            HANDOFF_ALLOCATE_KEEP_SIZE => Allocation::KeepSize,
            HANDOFF_ALLOCATE_PUNCH_HOLE => Allocation::PunchHole,
            HANDOFF_ALLOCATE_ZERO => Allocation::Zero,
            HANDOFF_ALLOCATE_ZERO_KEEP_SIZE => Allocation::ZeroKeepSize,
            _ => return Err(Failure::invalid("how is none of HANDOFF_ALLOCATE_...")),
        };
        // SAFETY: the caller vouches for it.
        unsafe {
            call(&file.state, user_data, operation, || file.file.allocate(offset, length, how))
        }
    })
}

/// Begins to write changed pages of a range back (sync_file_range(2)); `length` 0 means up to the end. `how` is one of
/// `HANDOFF_WRITE_BACK_...`. This is no sync: nothing is safe on the device by it. `HANDOFF_EVENT_CALLED` tells the end.
/// `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_write_back(
    file: handoff_file,
    offset: u64,
    length: u64,
    how: u32,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let file = handles::get::<Rc<OpenFile>>(file)?;
        let how = match how {
            HANDOFF_WRITE_BACK_BEGIN => WriteBack::Begin,
            HANDOFF_WRITE_BACK_FINISH => WriteBack::Finish,
            _ => return Err(Failure::invalid("how is none of HANDOFF_WRITE_BACK_...")),
        };
        let begin = || file.file.write_back(offset, length, how);
        // SAFETY: the caller vouches for it.
        unsafe { call(&file.state, user_data, operation, begin) }
    })
}

/// Begins to tell the kernel what you will do with a range (posix_fadvise(2)); `length` 0 means up to the end. `advice` is
/// one of `POSIX_FADV_...`. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_advise(
    file: handoff_file,
    offset: u64,
    length: u64,
    advice: c_int,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let file = handles::get::<Rc<OpenFile>>(file)?;
        let advice = match advice {
            libc::POSIX_FADV_NORMAL => Advice::Normal,
            libc::POSIX_FADV_SEQUENTIAL => Advice::Sequential,
            libc::POSIX_FADV_RANDOM => Advice::Random,
            libc::POSIX_FADV_NOREUSE => Advice::NoReuse,
            libc::POSIX_FADV_WILLNEED => Advice::WillNeed,
            libc::POSIX_FADV_DONTNEED => Advice::DontNeed,
            _ => return Err(Failure::invalid("advice is none of POSIX_FADV_...")),
        };
        let begin = || file.file.advise(offset, length, advice);
        // SAFETY: the caller vouches for it.
        unsafe { call(&file.state, user_data, operation, begin) }
    })
}

/// Begins to give an open file a name, which must be free: one of `O_TMPFILE`, or another. The path begins at `directory`;
/// 0 is the process's working directory. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `path` is a string; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_link(
    file: handoff_file,
    directory: handoff_directory,
    path: *const c_char,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let file = handles::get::<Rc<OpenFile>>(file)?;
        let to = place_at(&file.state, directory)?;
        // SAFETY: the caller vouches for it.
        let path = unsafe { self::path(path) }?;
        // SAFETY: the caller vouches for it.
        unsafe { call(&file.state, user_data, operation, || file.file.link(&to, path)) }
    })
}

/// Begins to cut a file to a length, or to lengthen it by a hole (ftruncate(2)). `HANDOFF_EVENT_CALLED` tells the end.
/// `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_truncate(
    file: handoff_file,
    length: u64,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let file = handles::get::<Rc<OpenFile>>(file)?;
        // SAFETY: the caller vouches for it.
        unsafe { call(&file.state, user_data, operation, || file.file.set_len(length)) }
    })
}

/// Begins to ask what the kernel knows of a file (statx(2)). With `HANDOFF_EVENT_CALLED`, whose `bytes` are the file's
/// length, `handoff_take_metadata` gives the rest by the operation's handle. `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_stat(
    file: handoff_file,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let file = handles::get::<Rc<OpenFile>>(file)?;
        // SAFETY: the caller vouches for it.
        unsafe { ask(&file.state, user_data, operation, || file.file.metadata()) }
    })
}

/// As `handoff_stat`, of what has a name: the path begins at `directory`; 0 is the process's working directory. `flags` is
/// 0, or `AT_SYMLINK_NOFOLLOW` to ask about a symbolic link itself.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `path` is a string; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_stat_at(
    driver: handoff_driver,
    directory: handoff_directory,
    path: *const c_char,
    flags: c_int,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let (from, state) = place(driver, directory)?;
        // SAFETY: the caller vouches for it.
        let path = unsafe { self::path(path) }?;
        let begin = || match flags {
            0 => from.metadata(path),
            libc::AT_SYMLINK_NOFOLLOW => from.symlink_metadata(path),
            _ => Err(handoff::Error::Invalid("flags is neither 0 nor AT_SYMLINK_NOFOLLOW")),
        };
        // SAFETY: the caller vouches for it.
        unsafe { ask(&state, user_data, operation, begin) }
    })
}

/// Begins to ask, with a place for the answer.
///
/// # Safety
///
/// `operation` is NULL or can be written.
unsafe fn ask(
    state: &Rc<State>,
    user_data: u64,
    operation: *mut handoff_operation,
    begin: impl FnOnce() -> handoff::Result<FileCall<Metadata>>,
) -> Result<c_int, Failure> {
    let told = Told::default();
    let event = handoff_event::new(HANDOFF_EVENT_CALLED, user_data);
    let place = Rc::clone(&told);
    let begin = || {
        Ok(follow(state, begin()?, event, move |mut event, state, metadata| {
            event.bytes = metadata.len();
            *place.borrow_mut() = Some(metadata);
            state.tell(event, None);
        }))
    };
    // SAFETY: the caller vouches for it.
    unsafe { operation::begin_with(operation, Some(told.into()), begin) }
}

/// What `handoff_stat` was told, once its event has come.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `metadata` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_take_metadata(
    operation: handoff_operation,
    metadata: *mut handoff_metadata,
) -> c_int {
    enter(|| {
        check(metadata)?;
        let told = operation::told(operation)?;
        let told = told.borrow();
        let Some(told) = &*told else {
            return Err(Failure::new(libc::EAGAIN, "nothing was told yet, or the call has failed"));
        };
        // SAFETY: the caller vouches for it.
        unsafe { put(metadata, of(told)) }?;
        Ok(0)
    })
}

fn of(told: &Metadata) -> handoff_metadata {
    let ((device_major, device_minor), inode) = told.identity();
    let (user, group) = told.owner();
    let alignment = told.alignment();
    handoff_metadata {
        length: told.len(),
        allocated: told.allocated(),
        inode,
        device_major,
        device_minor,
        mode: told.mode(),
        links: told.links(),
        user,
        group,
        memory_alignment: alignment.map_or(0, |it| it.memory as u32),
        block_alignment: alignment.map_or(0, |it| it.blocks as u32),
    }
}

/// Begins to rename a file or directory, in one step. The paths begin at the directories, of which 0 is the process's
/// working directory. `how` is one of `HANDOFF_RENAME_...`. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for
/// `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `from` and `to` are strings; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_rename(
    driver: handoff_driver,
    from_directory: handoff_directory,
    from: *const c_char,
    to_directory: handoff_directory,
    to: *const c_char,
    how: u32,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let (old, state) = place(driver, from_directory)?;
        let (new, _) = place(driver, to_directory)?;
        // SAFETY: the caller vouches for it.
        let (from, to) = unsafe { (path(from)?, path(to)?) };
        let how = match how {
            HANDOFF_RENAME_REPLACE => Renaming::Replace,
            HANDOFF_RENAME_NO_REPLACE => Renaming::NoReplace,
            HANDOFF_RENAME_EXCHANGE => Renaming::Exchange,
            _ => return Err(Failure::invalid("how is none of HANDOFF_RENAME_...")),
        };
        // SAFETY: the caller vouches for it.
        unsafe { call(&state, user_data, operation, || old.rename(from, &new, to, how)) }
    })
}

/// Begins to make a directory, with the permissions of `mode` that the process's umask leaves. The path begins at
/// `directory`; 0 is the process's working directory. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for
/// `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `path` is a string; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_mkdir(
    driver: handoff_driver,
    directory: handoff_directory,
    path: *const c_char,
    mode: u32,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let (from, state) = place(driver, directory)?;
        // SAFETY: the caller vouches for it.
        let path = unsafe { self::path(path) }?;
        // SAFETY: the caller vouches for it.
        unsafe { call(&state, user_data, operation, || from.create_dir(path, mode)) }
    })
}

/// Begins to remove a name, by a path that begins at `directory`; 0 is the process's working directory. `flags` is 0, or
/// `AT_REMOVEDIR` for an empty directory. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `path` is a string; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_unlink(
    driver: handoff_driver,
    directory: handoff_directory,
    path: *const c_char,
    flags: c_int,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let (from, state) = place(driver, directory)?;
        // SAFETY: the caller vouches for it.
        let path = unsafe { self::path(path) }?;
        let begin = || match flags {
            0 => from.remove_file(path),
            libc::AT_REMOVEDIR => from.remove_dir(path),
            _ => Err(handoff::Error::Invalid("flags is neither 0 nor AT_REMOVEDIR")),
        };
        // SAFETY: the caller vouches for it.
        unsafe { call(&state, user_data, operation, begin) }
    })
}

/// Where paths begin.
fn place(
    driver: handoff_driver,
    directory: handoff_directory,
) -> Result<(Directory, Rc<State>), Failure> {
    let state = handles::get::<Rc<State>>(driver)?;
    Ok((place_at(&state, directory)?, state))
}

/// A directory of this driver.
fn place_at(state: &Rc<State>, directory: handoff_directory) -> Result<Directory, Failure> {
    if directory == 0 {
        return Ok(state.driver.working_directory()?);
    }
    let open = handles::get::<Rc<OpenDirectory>>(directory)?;
    if !Rc::ptr_eq(&open.state, state) {
        return Err(Failure::invalid("the directory belongs to another driver"));
    }
    Ok(open.directory.clone())
}

/// # Safety
///
/// The path is NULL or a string that stays for as long as the result is used.
unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    if path.is_null() {
        return Err(Failure::invalid("the path is NULL"));
    }
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

fn options(flags: c_int, mode: u32, how: u32) -> Result<OpenOptions, Failure> {
    let beneath = match how {
        0 => false,
        HANDOFF_OPEN_BENEATH => true,
        _ => return Err(Failure::invalid("how is neither 0 nor HANDOFF_OPEN_BENEATH")),
    };
    let has = |flag| flags & flag == flag;
    let access = flags & libc::O_ACCMODE;
    let writes = access == libc::O_WRONLY || access == libc::O_RDWR;
    let (creates, temporary) = (has(libc::O_CREAT), has(libc::O_TMPFILE));
    let told = libc::O_ACCMODE
        | libc::O_APPEND
        | libc::O_TRUNC
        | libc::O_CREAT
        | libc::O_DIRECT
        | libc::O_CLOEXEC
        | libc::O_TMPFILE;
    let exclusive = if creates { libc::O_EXCL } else { 0 };
    let mut options = OpenOptions::new();
    options
        .read(access == libc::O_RDONLY || access == libc::O_RDWR)
        .write(writes)
        .append(writes && has(libc::O_APPEND))
        .truncate(has(libc::O_TRUNC))
        .create(creates)
        .create_new(creates && has(libc::O_EXCL))
        .direct(has(libc::O_DIRECT))
        .temporary(temporary)
        .beneath(beneath)
        .mode(mode)
        .custom_flags(flags & !told & !exclusive);
    Ok(options)
}

/// Begins a call that tells nothing but its end.
///
/// # Safety
///
/// `operation` is NULL or can be written.
unsafe fn call(
    state: &Rc<State>,
    user_data: u64,
    operation: *mut handoff_operation,
    begin: impl FnOnce() -> handoff::Result<FileCall<()>>,
) -> Result<c_int, Failure> {
    let event = handoff_event::new(HANDOFF_EVENT_CALLED, user_data);
    let begin = || Ok(follow(state, begin()?, event, |event, state, ()| state.tell(event, None)));
    // SAFETY: the caller vouches for it.
    unsafe { operation::begin(operation, begin) }
}

/// Follows a call to its end, of which `tell` tells if it went well.
fn follow<T: 'static>(
    state: &Rc<State>,
    call: FileCall<T>,
    event: handoff_event,
    tell: impl FnOnce(handoff_event, &Rc<State>, T) + 'static,
) -> Weak<dyn Cancels> {
    let call = Rc::new(RefCell::new(call));
    let cancels = Rc::downgrade(&call);
    let driver = Rc::downgrade(state);
    state.begin(async move {
        match operation::finished(&call).await {
            Ok(result) => {
                if let Some(state) = driver.upgrade() {
                    tell(event, &state, result);
                }
            }
            Err(error) => driver::tell(&driver, event, Some(error.into())),
        }
    });
    cancels
}
