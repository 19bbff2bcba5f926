//! Files: reads into buffers, writes from buffers and spans.

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::{Rc, Weak};

use handoff::{Buffer, File, Frozen, Refused, RwFlags, Span, Transfer, Transferred};

use crate::boundary::{Failure, enter, owned};
use crate::driver::{self, State};
use crate::event::{HANDOFF_EVENT_TRANSFERRED, handoff_event};
use crate::handles::{
    self, Kind, handoff_buffer, handoff_driver, handoff_file, handoff_handle, handoff_operation,
};
use crate::loan::{self, Lent, Sendable};
use crate::operation::{self, Cancels};

pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) state: Rc<State>,
}

impl Kind for Rc<OpenFile> {
    const NAME: &'static str = "a file";
}

/// Attaches a file, pipe or block device to a driver, which closes `fd` from then on, also if this fails.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `fd` belongs to the caller; `file` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_file_new(
    driver: handoff_driver,
    fd: c_int,
    file: *mut handoff_file,
) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let fd = unsafe { owned(fd) }?;
        let attach = || {
            let state = handles::get::<Rc<State>>(driver)?;
            Ok(Rc::new(OpenFile { file: state.driver.file(fd)?, state }))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(file, attach) }
    })
}

/// Begins to read a file into a buffer, as much as its length, from `offset`; a pipe from -1.
///
/// The buffer is on loan until `HANDOFF_EVENT_TRANSFERRED`. Fewer bytes than its length is the end of the file.
/// `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to be closed in any case.
///
/// Returns 0, or a negative error number; nothing was lent then.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_read(
    file: handoff_file,
    buffer: handoff_buffer,
    offset: i64,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { handoff_read_with(file, buffer, offset, 0, user_data, operation) }
}

/// As `handoff_read`, with `flags` of preadv2(2), such as `RWF_NOWAIT`. With flags, `offset` is not -1.
///
/// Returns 0, or a negative error number; nothing was lent then.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_read_with(
    file: handoff_file,
    buffer: handoff_buffer,
    offset: i64,
    flags: c_int,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let (file, offset) = (handles::get::<Rc<OpenFile>>(file)?, at(offset)?);
        let flags = rw_flags(flags, offset)?;
        let begun = || {
            begin(&file, buffer, user_data, |lent: Buffer| match offset {
                Some(offset) => file.file.read_at_with(lent, offset, flags),
                None => file.file.read(lent),
            })
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begun) }
    })
}

/// Begins to write a buffer, a frozen one, or a span that was received, to a file at `offset`; to a pipe at -1.
///
/// The payload is on loan until `HANDOFF_EVENT_TRANSFERRED`; a span is gone then, and its handle is at once. A frozen
/// buffer can be lent again meanwhile. `operation` is as for `handoff_read`.
///
/// Returns 0, or a negative error number; nothing was lent then.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_write(
    file: handoff_file,
    payload: handoff_handle,
    offset: i64,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { handoff_write_with(file, payload, offset, 0, user_data, operation) }
}

/// As `handoff_write`, with `flags` of pwritev2(2): `RWF_DSYNC`, `RWF_SYNC`, `RWF_APPEND`, `RWF_NOWAIT`, `RWF_HIPRI`,
/// `RWF_ATOMIC`. With flags, `offset` is not -1.
///
/// Returns 0, or a negative error number; nothing was lent then.
///
/// # Safety
///
/// `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_write_with(
    file: handoff_file,
    payload: handoff_handle,
    offset: i64,
    flags: c_int,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        let (file, offset) = (handles::get::<Rc<OpenFile>>(file)?, at(offset)?);
        let how = (offset, rw_flags(flags, offset)?);
        let begun = || match loan::sendable(payload)? {
            Sendable::Buffer => write::<Buffer>(&file, payload, how, user_data),
            Sendable::Frozen => write::<Frozen>(&file, payload, how, user_data),
            Sendable::Span => write::<Span>(&file, payload, how, user_data),
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begun) }
    })
}

fn write<B: Lent>(
    file: &OpenFile,
    payload: handoff_handle,
    (offset, flags): (Option<u64>, RwFlags),
    user_data: u64,
) -> Result<Weak<dyn Cancels>, Failure> {
    begin(file, payload, user_data, |lent: B| match offset {
        Some(offset) => file.file.write_at_with(lent, offset, flags),
        None => file.file.write(lent),
    })
}

/// Flags of a read or write.
fn rw_flags(given: c_int, offset: Option<u64>) -> Result<RwFlags, Failure> {
    let all = [
        RwFlags::DSYNC,
        RwFlags::SYNC,
        RwFlags::HIPRI,
        RwFlags::NOWAIT,
        RwFlags::APPEND,
        RwFlags::ATOMIC,
    ];
    let mut flags = RwFlags::NONE;
    all.into_iter().filter(|flag| given & flag.bits() != 0).for_each(|flag| flags |= flag);
    if flags.bits() != given {
        return Err(Failure::invalid("flags has a bit that is none of RWF_..."));
    }
    if given != 0 && offset.is_none() {
        return Err(Failure::invalid(
            "a pipe has no flags: they are for reads and writes at an offset",
        ));
    }
    Ok(flags)
}

/// The place in a file; `None` is wherever a pipe is.
fn at(offset: i64) -> Result<Option<u64>, Failure> {
    match offset {
        -1 => Ok(None),
        offset => u64::try_from(offset)
            .map(Some)
            .map_err(|_| Failure::invalid("the offset is negative, and not -1")),
    }
}

/// Lends to a read or write, and follows that to its end.
fn begin<B: Lent>(
    file: &OpenFile,
    payload: handoff_handle,
    user_data: u64,
    begin: impl FnOnce(B) -> Result<Transfer<B>, Refused<B>>,
) -> Result<Weak<dyn Cancels>, Failure> {
    let mut cancels = Weak::<RefCell<Transfer<B>>>::new();
    loan::lend(payload, |lent, handle| {
        let transfer = begin(lent).map_err(|refused| (refused.buffer, refused.error.into()))?;
        let transfer = Rc::new(RefCell::new(transfer));
        cancels = Rc::downgrade(&transfer);
        let mut event = handoff_event::new(HANDOFF_EVENT_TRANSFERRED, user_data);
        event.handle = handle;
        file.state.begin(follow(Rc::downgrade(&file.state), transfer, event));
        Ok(())
    })?;
    Ok(cancels)
}

async fn follow<B: Lent>(
    state: Weak<State>,
    transfer: Rc<RefCell<Transfer<B>>>,
    event: handoff_event,
) {
    let over = operation::finished(&transfer).await;
    let result = over.and_then(|Transferred { buffer, result }| {
        loan::give_back(event.handle, buffer);
        result
    });
    driver::tell_bytes(&state, event, result);
}
