//! What the numbers that C holds stand for.
//!
//! A handle is a number of this thread, the use of a place in the thread's table, and the place. So one that
//! was closed, one of another thread, and one that was never given are told apart. After 65,535 threads the numbers of
//! ended ones are used again.
//!
//! In a child of fork(2) the handles of its parent have ended. What they stood for goes with the first call that looks at
//! the table, or with the thread, and leaves alone what both processes share.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use handoff_sys::process::Process;

use crate::boundary::{Failure, check, enter, put};

/// Something of the library. 0 is none.
pub type handoff_handle = u64;
/// A driver: one io_uring, or epoll and system calls, and all that belongs to it.
pub type handoff_driver = handoff_handle;
/// Memory that buffers are cut from.
pub type handoff_region = handoff_handle;
/// A piece of a region.
pub type handoff_buffer = handoff_handle;
/// Bytes that nobody writes, which many operations hold at once.
pub type handoff_frozen = handoff_handle;
/// A socket that a driver works on.
pub type handoff_socket = handoff_handle;
/// A file, pipe or block device that a driver works on.
pub type handoff_file = handoff_handle;
/// A directory that a driver works on, where paths begin.
pub type handoff_directory = handoff_handle;
/// A way to send in bulk.
pub type handoff_lane = handoff_handle;
/// What receiving draws on: a pool of chunks, a window of mapped pages, or an rx queue of a network card.
pub type handoff_pool = handoff_handle;
/// Receiving that is under way.
pub type handoff_receiver = handoff_handle;
/// Received bytes.
pub type handoff_span = handoff_handle;
/// Accepting that is under way.
pub type handoff_listener = handoff_handle;
/// Sends that are told of together.
pub type handoff_group = handoff_handle;
/// Something under way that can be cancelled.
pub type handoff_operation = handoff_handle;

/// Something that a handle can stand for.
pub(crate) trait Kind: Any {
    /// In messages, with its article.
    const NAME: &'static str;
}

struct Object {
    it: Box<dyn Any>,
    name: &'static str,
}

#[derive(Default)]
struct Slot {
    /// The handle, while the place is in use; else 0.
    handle: handoff_handle,
    /// Counts the uses of the place; odd while it is in use.
    uses: u32,
    object: Option<Object>,
}

/// Numbers for threads. Those of ended threads come last, the oldest first, so that their handles are told apart for as
/// long as possible.
struct Numbers {
    new: std::ops::RangeInclusive<u16>,
    ended: VecDeque<u16>,
}

impl Numbers {
    const fn new() -> Self {
        Self { new: 1..=u16::MAX, ended: VecDeque::new() }
    }

    fn take(&mut self) -> Option<u16> {
        self.new.next().or_else(|| self.ended.pop_front())
    }

    fn put_back(&mut self, number: u16) {
        self.ended.push_back(number);
    }
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers::new());

pub(crate) struct Table {
    /// `None` if all numbers are those of other threads.
    thread: Option<u16>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    made_by: Process,
    /// It had handles of the process that this one was forked from.
    was_forked: bool,
}

const PLACE_BITS: u32 = 24;
const USE_BITS: u32 = 24;

thread_local! {
    static TABLE: RefCell<Table> = RefCell::new(Table {
        thread: NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).take(),
        slots: Vec::new(),
        free: Vec::new(),
        made_by: Process::this(),
        was_forked: false,
    });
}

fn place_of(handle: handoff_handle) -> usize {
    (handle & ((1 << PLACE_BITS) - 1)) as usize
}

/// Makes an object and gives it a handle, if there is a place for that: else nobody could close it.
///
/// # Safety
///
/// `place` is NULL or can be written.
pub(crate) unsafe fn give<T: Kind>(
    place: *mut handoff_handle,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<c_int, Failure> {
    check(place)?;
    let handle = insert(make()?)?;
    // SAFETY: the caller vouches for it.
    unsafe { put(place, handle) }?;
    Ok(0)
}

/// Gives an object a handle.
pub(crate) fn insert<T: Kind>(it: T) -> Result<handoff_handle, Failure> {
    // One that gets none goes after the table is free again: its drop may use it.
    let mut object = Some(Object { it: Box::new(it), name: T::NAME });
    with_table(|table| {
        let Some(thread) = table.thread else {
            return Err(Failure::new(libc::EAGAIN, "too many threads have handles"));
        };
        let place = match table.free.pop() {
            Some(place) => place,
            None if table.slots.len() < 1 << PLACE_BITS => {
                table.slots.push(Slot::default());
                (table.slots.len() - 1) as u32
            }
            None => {
                return Err(Failure::new(libc::EMFILE, "this thread has too many handles open"));
            }
        };
        let thread = u64::from(thread);
        let slot = &mut table.slots[place as usize];
        slot.uses = slot.uses.wrapping_add(1);
        let uses = u64::from(slot.uses) & ((1 << USE_BITS) - 1);
        slot.handle = (thread << (PLACE_BITS + USE_BITS)) | (uses << PLACE_BITS) | u64::from(place);
        slot.object = object.take();
        Ok(slot.handle)
    })
}

/// Looks at an object. The table is borrowed meanwhile, so `look` calls nothing of this module.
pub(crate) fn with<T: Kind, R>(
    handle: handoff_handle,
    look: impl FnOnce(&mut T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    with_table(|table| look(table.of(handle)?))
}

/// An object that is shared.
pub(crate) fn get<T: Kind + Clone>(handle: handoff_handle) -> Result<T, Failure> {
    with(handle, |it: &mut T| Ok(it.clone()))
}

/// An object that is shared, if the handle stands for one of this kind.
pub(crate) fn get_if<T: Kind + Clone>(handle: handoff_handle) -> Result<Option<T>, Failure> {
    with_table(|table| Ok(table.object(handle)?.it.downcast_ref::<T>().cloned()))
}

/// What kind of object a handle stands for.
pub(crate) fn kind(handle: handoff_handle) -> Result<TypeId, Failure> {
    with_table(|table| Ok((*table.object(handle)?.it).type_id()))
}

/// Takes an object out of the table, which ends its handle.
pub(crate) fn remove<T: Kind>(handle: handoff_handle) -> Result<T, Failure> {
    with(handle, |_: &mut T| Ok(()))?;
    let it = take(handle)?.it.downcast();
    Ok(*it.expect("its kind was just looked at"))
}

fn take(handle: handoff_handle) -> Result<Object, Failure> {
    with_table(|table| {
        table.object(handle)?;
        let place = place_of(handle);
        let slot = &mut table.slots[place];
        slot.handle = 0;
        slot.uses = slot.uses.wrapping_add(1);
        table.free.push(place as u32);
        Ok(slot.object.take().expect("the object was just there"))
    })
}

/// Looks at several objects. The table is borrowed meanwhile, so `use_it` calls nothing of this module.
pub(crate) fn with_table<T>(
    use_it: impl FnOnce(&mut Table) -> Result<T, Failure>,
) -> Result<T, Failure> {
    TABLE
        .try_with(|table| {
            if !table.borrow().made_by.is_this() {
                let of_parent = table.borrow_mut().end_all();
                // Their drops may use the table.
                drop(of_parent);
            }
            use_it(&mut table.borrow_mut())
        })
        .unwrap_or_else(|_| Err(Failure::new(libc::EBADF, "this thread is ending")))
}

impl Table {
    /// What a handle stands for, if it is of this kind.
    pub(crate) fn of<T: Kind>(&mut self, handle: handoff_handle) -> Result<&mut T, Failure> {
        let object = self.object(handle)?;
        let name = object.name;
        object.it.downcast_mut().ok_or_else(|| mistaken(name, T::NAME))
    }

    #[inline]
    fn object(&mut self, handle: handoff_handle) -> Result<&mut Object, Failure> {
        let thread = self.thread;
        if let Some(slot) = self.slots.get_mut(place_of(handle)) {
            if let Some(object) = &mut slot.object
                && slot.handle == handle
            {
                return Ok(object);
            }
            return Err(unknown(handle, thread, if self.was_forked { FORKED } else { CLOSED }));
        }
        Err(unknown(handle, thread, NEVER_GIVEN))
    }

    /// Ends the handles of the process that this one was forked from, so that none of them is taken for one of this
    /// process.
    #[cold]
    fn end_all(&mut self) -> Vec<Object> {
        (self.made_by, self.was_forked) = (Process::this(), true);
        let mut ended = Vec::new();
        for (place, slot) in self.slots.iter_mut().enumerate() {
            if let Some(object) = slot.object.take() {
                slot.handle = 0;
                slot.uses = slot.uses.wrapping_add(1);
                self.free.push(place as u32);
                ended.push(object);
            }
        }
        ended
    }
}

const CLOSED: &str = "the handle was closed";
const FORKED: &str = "the handle was closed, or is of the process that this one was forked from: fork before the first \
                      handle is made, or make one here";
const NEVER_GIVEN: &str = "the handle was never given";

impl Drop for Table {
    fn drop(&mut self) {
        let slots = mem::take(&mut self.slots);
        // A panic here would end the process.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(slots)));
        // In a child, another thread of its parent may have the lock for ever.
        if let Some(thread) = self.thread
            && self.made_by.is_this()
        {
            NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).put_back(thread);
        }
    }
}

/// Why a handle stands for nothing.
#[cold]
fn unknown(handle: handoff_handle, thread: Option<u16>, otherwise: &str) -> Failure {
    let text = if handle == 0 {
        "the handle is 0, which is none"
    } else if Some((handle >> (PLACE_BITS + USE_BITS)) as u16) != thread {
        "the handle was made by another thread: use it there, or make one here"
    } else {
        otherwise
    };
    Failure::new(libc::EBADF, text)
}

/// That a handle stands for something else.
#[cold]
fn mistaken(name: &str, wanted: &str) -> Failure {
    Failure::new(libc::EBADF, format!("the handle is {name}, and {wanted} is wanted"))
}

/// Ends a handle, of whatever kind.
///
/// What is under way goes on: a socket's sends go out, and a buffer on loan is freed when it comes back. A
/// driver goes when its handle and those of its sockets, files, lanes, groups and receivers in bulk are closed;
/// what is under way then is cancelled, and buffers on loan are freed.
///
/// Returns 0, or `-EBADF`.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_close(handle: handoff_handle) -> c_int {
    enter(|| {
        // The object goes after the table is free again: its drop may use it.
        drop(take(handle)?);
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_threads_have_numbers_of_their_own() {
        let mut numbers = Numbers::new();
        let all: Vec<_> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(all, (1..=u16::MAX).collect::<Vec<_>>());
        numbers.put_back(7);
        numbers.put_back(3);
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [Some(7), Some(3), None]);
    }

    #[test]
    fn a_thread_that_ends_gives_its_number_back() {
        let number = || TABLE.with_borrow(|table| table.thread);
        let ended = std::thread::spawn(number).join().expect("ends").expect("has one");
        let numbers = NUMBERS.lock().expect("nobody panicked");
        assert!(numbers.ended.contains(&ended));
    }
}
