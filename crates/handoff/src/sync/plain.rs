//! What programs use.

use std::ops::Deref;
use std::ptr::NonNull;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};
pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock};

/// An atomic in memory that the kernel uses, too.
pub(crate) struct Word<A>(NonNull<A>);

impl<A> Word<A> {
    /// # Safety
    ///
    /// The address is that of such an atomic, which stays there as long as this is used, and which nobody accesses in
    /// another way.
    pub(crate) unsafe fn at(start: NonNull<u8>) -> Self {
        Self(start.cast())
    }
}

impl<A> Deref for Word<A> {
    type Target = A;

    #[inline(always)]
    fn deref(&self) -> &A {
        // SAFETY: by the contract of `at`.
        unsafe { self.0.as_ref() }
    }
}

/// Tells the models that so many values are about to be written, and who reads them must be ordered.
#[inline(always)]
pub(crate) fn writes<T>(_: *mut T, _: usize) {}

/// Tells the models that a value is read.
#[cfg(test)]
pub(crate) fn reads<T>(_: *const T) {}
