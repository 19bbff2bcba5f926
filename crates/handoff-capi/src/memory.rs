//! Regions, and the buffers cut from them.

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use handoff::{Buffer, Frozen, Region};

use crate::boundary::{Failure, enter, put_bytes};
use crate::driver::State;
use crate::handles::{self, Kind, handoff_buffer, handoff_driver, handoff_frozen, handoff_region};
use crate::loan;

/// Ordinary pages.
pub const HANDOFF_PAGES_BASE: u32 = 0;
/// Huge pages, where the machine has some free; else ordinary ones.
pub const HANDOFF_PAGES_HUGE: u32 = 1;

/// Makes a region of `length` bytes, in whole pages. `pages` is one of `HANDOFF_PAGES_...`.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `region` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_region_new(
    length: usize,
    pages: u32,
    region: *mut handoff_region,
) -> c_int {
    enter(|| {
        let make = || match pages {
            HANDOFF_PAGES_BASE => Ok(Region::anonymous(length)?),
            HANDOFF_PAGES_HUGE => Ok(Region::huge(length)?),
            _ => Err(Failure::invalid("pages is none of HANDOFF_PAGES_...")),
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(region, make) }
    })
}

impl Kind for Region {
    const NAME: &'static str = "a region";
}

/// Registers a region with a driver: its pages are pinned once, instead of at each send. A region that is not
/// registered serves too.
///
/// Returns 0, or a negative error number: `-ENOMEM` at the limit on locked memory, `-EOPNOTSUPP` without a ring.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_register(driver: handoff_driver, region: handoff_region) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        handles::with(region, |region: &mut Region| {
            Ok(state.driver.register(region).map(drop)?)
        })?;
        Ok(0)
    })
}

/// Takes a region out of a driver's table. What is under way is not disturbed.
///
/// Returns 0, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_unregister(driver: handoff_driver, region: handoff_region) -> c_int {
    enter(|| {
        let state = handles::get::<Rc<State>>(driver)?;
        handles::with(region, |region: &mut Region| Ok(state.driver.unregister(region)?))?;
        Ok(0)
    })
}

/// Cuts a buffer of `length` bytes from what is left of a region. Close it to free the handle; the region's bytes
/// are handed out once.
///
/// Returns 0, or a negative error number: `-ENOSPC` when the region has not so much left.
///
/// # Safety
///
/// `buffer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_buffer_new(
    region: handoff_region,
    length: usize,
    buffer: *mut handoff_buffer,
) -> c_int {
    enter(|| {
        let cut = |region: &mut Region| {
            let free = region.free();
            region.take(length).map(Some).ok_or_else(|| {
                let text = format!("the region has {free} bytes left, and {length} are wanted");
                Failure::new(libc::ENOSPC, text)
            })
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(buffer, || handles::with(region, cut)) }
    })
}

/// Where a buffer's bytes are, and how many. Don't touch them while the buffer is on loan.
///
/// Returns 0, or a negative error number: `-EBUSY` while it is on loan.
///
/// # Safety
///
/// `data` and `length` can be written; `length` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_buffer_data(
    buffer: handoff_buffer,
    data: *mut *mut c_void,
    length: *mut usize,
) -> c_int {
    enter(|| {
        let place = loan::with(buffer, |buffer: &mut Buffer| {
            Ok((buffer.as_mut_ptr().cast(), buffer.len()))
        })?;
        // SAFETY: the caller vouches for it.
        unsafe { put_bytes(data, length, place) }?;
        Ok(0)
    })
}

/// Makes a buffer shorter, or as long as it was cut again.
///
/// Returns 0, or a negative error number: `-EINVAL` past the length that it was cut with.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_buffer_set_length(buffer: handoff_buffer, length: usize) -> c_int {
    enter(|| {
        loan::with(buffer, |buffer: &mut Buffer| {
            if length > buffer.capacity() {
                return Err(Failure::invalid("the buffer was cut shorter than that"));
            }
            buffer.set_len(length);
            Ok(0)
        })
    })
}

/// Cuts a buffer in two: it keeps what is behind the first `at` bytes, which `front` is.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `front` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_buffer_split(
    buffer: handoff_buffer,
    at: usize,
    front: *mut handoff_buffer,
) -> c_int {
    enter(|| {
        let split = |buffer: &mut Buffer| {
            if at > buffer.len() {
                return Err(Failure::invalid("the buffer is shorter than that"));
            }
            Ok(Some(buffer.split_to(at)))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(front, || loan::with(buffer, split)) }
    })
}

/// Ends the writing of a buffer, so that many operations can hold it at once. The buffer's handle ends.
///
/// Returns 0, or a negative error number; the buffer is as before then.
///
/// # Safety
///
/// `frozen` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_freeze(
    buffer: handoff_buffer,
    frozen: *mut handoff_frozen,
) -> c_int {
    enter(|| {
        let freeze = || {
            let whole: Buffer = loan::take(buffer)?;
            handles::remove::<Option<Buffer>>(buffer)?;
            Ok(Some(whole.freeze()))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(frozen, freeze) }
    })
}

/// Where a frozen buffer's bytes are, and how many: to be read only, as long as the handle is open.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `data` and `length` can be written; `length` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_frozen_data(
    frozen: handoff_frozen,
    data: *mut *const c_void,
    length: *mut usize,
) -> c_int {
    enter(|| {
        let place =
            loan::with(frozen, |frozen: &mut Frozen| Ok((frozen.as_ptr().cast(), frozen.len())))?;
        // SAFETY: the caller vouches for it.
        unsafe { put_bytes(data, length, place) }?;
        Ok(0)
    })
}

/// Makes a handle for a part of a frozen buffer, or for the whole again. It shares the bytes, is lent like the
/// whole, and keeps the whole frozen.
///
/// Returns 0, or a negative error number: `-EINVAL` past the end.
///
/// # Safety
///
/// `part` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_frozen_part(
    frozen: handoff_frozen,
    at: usize,
    length: usize,
    part: *mut handoff_frozen,
) -> c_int {
    enter(|| {
        let share = |frozen: &mut Frozen| {
            let end = at.checked_add(length).filter(|end| *end <= frozen.len());
            let end =
                end.ok_or_else(|| Failure::invalid("the frozen buffer is shorter than that"))?;
            Ok(Some(frozen.part(at..end)))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(part, || loan::with(frozen, share)) }
    })
}

/// Makes a frozen buffer one that can be written again: the whole that was frozen, also where this is a part of it.
/// The handle ends.
///
/// Returns 0, or a negative error number: `-EBUSY` while there are other handles of it, or it is on loan. The handle
/// stays then.
///
/// # Safety
///
/// `buffer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_unfreeze(
    frozen: handoff_frozen,
    buffer: *mut handoff_buffer,
) -> c_int {
    enter(|| {
        let unfreeze = || match loan::take::<Frozen>(frozen)?.try_unfreeze() {
            Ok(whole) => {
                handles::remove::<Option<Frozen>>(frozen)?;
                Ok(Some(whole))
            }
            Err(still) => {
                loan::give_back(frozen, still);
                Err(Failure::new(
                    libc::EBUSY,
                    "the frozen buffer has other handles or is on loan: close them, and wait until it is back",
                ))
            }
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(buffer, unfreeze) }
    })
}
