//! The one way from C into Rust: results become numbers, errors a text of the thread, panics an error.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::Deref;
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use handoff::Error;

/// Why a call failed. It is elsewhere, so that results which may be one stay small.
#[derive(Clone, Debug)]
pub(crate) struct Failure(Box<Why>);

/// An error number, and the text for people.
#[derive(Clone, Debug)]
pub(crate) struct Why {
    pub(crate) errno: c_int,
    pub(crate) text: String,
}

impl Failure {
    #[cold]
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self(Box::new(Why { errno, text: text.into() }))
    }

    #[cold]
    pub(crate) fn invalid(text: &str) -> Self {
        Self::new(libc::EINVAL, text)
    }

    pub(crate) fn into_text(self) -> String {
        self.0.text
    }
}

impl Deref for Failure {
    type Target = Why;

    fn deref(&self) -> &Why {
        &self.0
    }
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::Io { .. } | Error::Path { .. } => error.raw_os_error().unwrap_or(libc::EIO),
            Error::Memlock { .. } => libc::ENOMEM,
            Error::Busy { .. } | Error::LaneFull { .. } | Error::SpansAway { .. } => libc::EAGAIN,
            Error::MessageTooLong { .. } => libc::EMSGSIZE,
            Error::DescriptorsCut { .. } => libc::EMSGSIZE,
            Error::NameInUse { .. } => libc::EADDRINUSE,
            Error::StreamBroken { .. } => libc::EPIPE,
            Error::StreamEnded { .. } => libc::ENODATA,
            Error::NoDescriptor { .. } => libc::EMFILE,
            Error::Canceled { .. } => libc::ECANCELED,
            Error::EngineUnavailable { .. } | Error::NoRing { .. } => libc::EOPNOTSUPP,
            Error::DriverGone => libc::ESHUTDOWN,
            Error::OtherProcess => libc::EBADF,
            _ => libc::EINVAL,
        };
        Self::new(errno, error.to_string())
    }
}

/// Bytes that an operation had done before it failed of this.
pub(crate) fn done(error: &Error) -> u64 {
    match error {
        Error::Canceled { done } => *done as u64,
        Error::StreamEnded { received, .. } | Error::DescriptorsCut { received } => {
            *received as u64
        }
        _ => 0,
    }
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function of the interface: its result, or the negative error number.
pub(crate) fn enter(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // What the body leaves half done stays behind its handles, which check their state at each use.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = format!("a fault of handoff: {}", what.unwrap_or("it panicked"));
            Failure::new(libc::ENOTRECOVERABLE, text)
        }
    };
    let _ = TEXT.try_with(|text| *text.borrow_mut() = c_string(&failure.text));
    -failure.errno
}

/// A text for C; it ends at the first zero byte.
pub(crate) fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// Whether there is a place for the result: for calls that can't be undone when it turns out that there is none.
pub(crate) fn check<T>(place: *mut T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid("the place for the result is NULL"));
    }
    Ok(())
}

/// Writes a result where the caller wants it.
///
/// # Safety
///
/// `place` is NULL or can be written.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Failure> {
    check(place)?;
    // SAFETY: the caller vouches for it.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes where bytes are, and how many.
///
/// # Safety
///
/// `data` and `length` are each NULL or can be written.
pub(crate) unsafe fn put_bytes<T>(
    data: *mut T,
    length: *mut usize,
    (start, bytes): (T, usize),
) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { put(data, start) }?;
    if !length.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { put(length, bytes) }?;
    }
    Ok(())
}

/// So many bytes at a place; none where there are none.
///
/// # Safety
///
/// The bytes are there, unless the place is NULL, and stay for as long as the result is used.
pub(crate) unsafe fn bytes<'a>(
    place: *const c_void,
    length: usize,
    most: usize,
    what: &str,
) -> Result<&'a [u8], Failure> {
    match (place.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid(&format!("the {what} is NULL, and has a length"))),
        (false, length) if length > most => {
            Err(Failure::invalid(&format!("the {what} is longer than {most} bytes")))
        }
        // SAFETY: the caller vouches for it.
        (false, length) => Ok(unsafe { std::slice::from_raw_parts(place.cast(), length) }),
    }
}

/// A descriptor that the caller gives away.
///
/// # Safety
///
/// It is the caller's, or no descriptor.
pub(crate) unsafe fn owned(fd: c_int) -> Result<OwnedFd, Failure> {
    // SAFETY: a call on any number.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Failure::new(libc::EBADF, format!("{fd} is no open descriptor")));
    }
    // SAFETY: it is open, and the caller vouches for who owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the last call of this thread that failed failed of, and what to do about it.
///
/// The text is valid until the next call of this thread that fails. It is empty before the first.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_error_text() -> *const c_char {
    const EMPTY: *const c_char = c"".as_ptr();
    TEXT.try_with(|text| text.borrow().as_ptr()).unwrap_or(EMPTY)
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn handoff_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
