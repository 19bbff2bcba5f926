//! An allocator that finds writes to freed memory, also by the kernel, and leaks.
//!
//! While a thread is watched, memory that it frees is filled with [`POISON`] and kept, so no address comes twice; when
//! the watch ends, the filling must be untouched. An address sanitizer sees only the program's own code, not the kernel;
//! where one is built in, this allocator steps aside.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

const POISON: u8 = 0xd7;
/// Whether an address sanitizer is built in.
const IS_SANITIZED: bool = option_env!("HANDOFF_ADDRESS_SANITIZER").is_some();

/// Watches the threads that ask for it.
pub(crate) struct Watching;

/// A freed block, whose beginning links to the one freed before it.
#[repr(C)]
struct Freed {
    before: *mut Freed,
    /// What the system gave.
    layout: Layout,
}

/// The layout with room for a [`Freed`].
fn padded(layout: Layout) -> Layout {
    if IS_SANITIZED {
        return layout;
    }
    let size = layout.size().max(size_of::<Freed>());
    Layout::from_size_align(size, layout.align()).expect("less than all addresses")
}

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    /// Bytes that were allocated and not freed.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static LAST: Cell<*mut Freed> = const { Cell::new(std::ptr::null_mut()) };
}

fn is_watched() -> bool {
    WATCHED.try_with(Cell::get).unwrap_or(false)
}

// SAFETY: the system's allocator does the work; what is kept is freed once, by the end of the watch.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_watched() {
            LIVE.set(LIVE.get() + layout.size() as isize);
        }
        // SAFETY: the caller's duty; as large at least.
        unsafe { System.alloc(padded(layout)) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if !is_watched() {
            // SAFETY: the caller's duty; `alloc` asked for this layout.
            return unsafe { System.dealloc(start, padded(layout)) };
        }
        LIVE.set(LIVE.get() - layout.size() as isize);
        let layout = padded(layout);
        // SAFETY: the caller frees the block, `alloc` made it large enough, and only this list has it.
        unsafe {
            start.write_bytes(POISON, layout.size());
            start.cast::<Freed>().write_unaligned(Freed { before: LAST.get(), layout });
        }
        LAST.set(start.cast());
    }
}

/// The result of a watch.
pub(crate) struct Found {
    /// Bytes that were allocated and not freed, less those freed and not allocated in the watch.
    pub(crate) live: isize,
    /// Lengths of freed blocks that were written to, and the places in them.
    pub(crate) overwritten: Vec<(usize, usize)>,
}

/// Ends a watch, also by a panic.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        WATCHED.set(false);
    }
}

/// Watches this thread while it runs something.
pub(crate) fn watched<T>(act: impl FnOnce() -> T) -> (T, Found) {
    take_kept();
    LIVE.set(0);
    let end = End;
    WATCHED.set(!IS_SANITIZED);
    let value = act();
    drop(end);
    (value, Found { live: LIVE.get(), overwritten: take_kept() })
}

/// Frees the kept blocks; returns the lengths of those that were written to, and the places.
fn take_kept() -> Vec<(usize, usize)> {
    const HEAD: usize = size_of::<Freed>();
    let mut overwritten = Vec::new();
    let mut next = LAST.replace(std::ptr::null_mut());
    while !next.is_null() {
        // SAFETY: the list has blocks that nobody else has, with what `dealloc` wrote: the beginning, and
        // the filling of the rest. They came from the system's allocator with this layout.
        unsafe {
            let Freed { before, layout } = next.read_unaligned();
            let rest =
                std::slice::from_raw_parts(next.cast::<u8>().add(HEAD), layout.size() - HEAD);
            if let Some(place) = rest.iter().position(|byte| *byte != POISON) {
                overwritten.push((layout.size(), HEAD + place));
            }
            System.dealloc(next.cast(), layout);
            next = before;
        }
    }
    overwritten
}

#[test]
fn no_address_comes_twice() {
    for len in 1..=2 * size_of::<Freed>() {
        let address = || {
            let block = vec![0u8; len];
            block.as_ptr().addr()
        };
        let (addresses, _) = watched(|| [address(), address()]);
        assert_ne!(addresses[0], addresses[1], "{len} bytes");
    }
}
