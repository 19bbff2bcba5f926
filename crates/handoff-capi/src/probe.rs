//! What this machine can do.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use handoff_probe::State;

use crate::boundary::{Failure, c_string, enter};

/// It can't be done here: `reason` says why.
pub const HANDOFF_NO: u32 = 0;
/// It works here: it was tried, or the kernel says so.
pub const HANDOFF_YES: u32 = 1;
/// Not known: `reason` has what kept from trying.
pub const HANDOFF_UNKNOWN: u32 = 2;

/// Whether a mechanism works on this machine, for this user. The texts are valid during the callback; those that
/// say nothing are NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct handoff_capability {
    /// Its name.
    pub mechanism: *const c_char,
    /// One of `HANDOFF_NO`, `HANDOFF_YES`, `HANDOFF_UNKNOWN`.
    pub state: u32,
    /// Why not, or what is limited.
    pub reason: *const c_char,
    /// What would help.
    pub remedy: *const c_char,
}

/// Tries each mechanism, and calls `tell` for each.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `tell` can be called with `context`, and does not leave by `longjmp` or an exception.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_probe(
    tell: Option<unsafe extern "C" fn(capability: *const handoff_capability, context: *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    enter(|| {
        let tell = tell.ok_or_else(|| Failure::invalid("the callback is NULL"))?;
        for found in handoff_probe::all() {
            let text = |text: Option<&str>| text.map(c_string);
            let mechanism = c_string(&found.mechanism);
            let (reason, remedy) = (text(found.reason.as_deref()), text(found.remedy.as_deref()));
            let pointer =
                |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
            let capability = handoff_capability {
                mechanism: mechanism.as_ptr(),
                state: match found.state {
                    State::No => HANDOFF_NO,
                    State::Yes => HANDOFF_YES,
                    State::Unknown => HANDOFF_UNKNOWN,
                },
                reason: pointer(&reason),
                remedy: pointer(&remedy),
            };
            // SAFETY: the caller vouches for it, and the texts are there until it returns.
            unsafe { tell(&raw const capability, context) };
        }
        Ok(0)
    })
}
