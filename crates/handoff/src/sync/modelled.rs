//! What models use: loom sees every access, and tries the orders in which accesses and stores may come.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::Ordering::{Acquire, Release};
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// How often at most a run of a model takes the processor from a thread that could go on, unless `LOOM_MAX_PREEMPTIONS`
/// says otherwise.
const PREEMPTIONS: usize = 4;

/// Runs a model once for each order that the bound allows.
pub(crate) fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut models = loom::model::Builder::new();
    models.preemption_bound.get_or_insert(PREEMPTIONS);
    models.check(move || {
        // Made before any thread begins: it must order nothing.
        let _ = &MEMORY.words;
        run();
    });
}

/// As the standard library's, of which loom has none.
pub(crate) struct OnceLock<T> {
    making: Mutex<()>,
    is_made: AtomicBool,
    made: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self {
            making: Mutex::default(),
            is_made: AtomicBool::new(false),
            made: std::sync::OnceLock::new(),
        }
    }
}

impl<T> OnceLock<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        if self.is_made.load(Acquire) { self.made.get() } else { None }
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(made) = self.get() {
            return made;
        }
        let _making = self.making.lock();
        let made = self.made.get_or_init(make);
        self.is_made.store(true, Release);
        made
    }
}

/// What models know of memory that loom does not see, by its addresses.
#[derive(Default)]
struct Memory {
    words: std::sync::Mutex<HashMap<usize, Arc<dyn Any + Send + Sync>>>,
    values: std::sync::Mutex<HashMap<usize, Arc<Value>>>,
}

/// Stands for a value in memory.
struct Value(UnsafeCell<()>);

// SAFETY: there is nothing in it; loom looks at who accesses it.
unsafe impl Send for Value {}
// SAFETY: as above.
unsafe impl Sync for Value {}

loom::lazy_static! {
    /// Each run of a model has its own.
    static ref MEMORY: Memory = Memory::default();
}

/// An atomic in memory that the kernel uses, too: one for each address. It begins with 0.
pub(crate) struct Word<A>(Arc<A>);

impl<A: Default + Send + Sync + 'static> Word<A> {
    /// # Safety
    ///
    /// None: this form touches no memory.
    pub(crate) unsafe fn at(start: NonNull<u8>) -> Self {
        let mut words = MEMORY.words.lock().unwrap_or_else(PoisonError::into_inner);
        let word = words.entry(start.addr().get()).or_insert_with(|| Arc::new(A::default()));
        Self(Arc::clone(word).downcast().expect("each word has one type"))
    }
}

impl<A> Deref for Word<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.0
    }
}

fn value(address: usize) -> Arc<Value> {
    let mut values = MEMORY.values.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(values.entry(address).or_insert_with(|| Arc::new(Value(UnsafeCell::new(())))))
}

/// So many values are about to be written: everybody else's accesses must be ordered before or behind.
#[track_caller]
pub(crate) fn writes<T>(start: *mut T, count: usize) {
    for at in 0..count {
        value(start.wrapping_add(at).addr()).0.with_mut(|_| ());
    }
}

/// A value is read: everybody else's writes must be ordered before or behind.
#[track_caller]
pub(crate) fn reads<T>(at: *const T) {
    value(at.addr()).0.with(|_| ());
}

/// Where a thread waits until something wakes it, as a driver does. A wake that is lost is a deadlock, which loom
/// reports.
#[derive(Default)]
pub(crate) struct Parker(Notify);

impl Parker {
    pub(crate) fn wait(&self) {
        self.0.wait();
    }

    pub(crate) fn end_wait(&self) {
        self.0.notify();
    }

    /// Runs a future to its end.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(self));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => self.wait(),
            }
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.end_wait();
    }
}
