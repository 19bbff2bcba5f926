//! Memory with an owner, which rings can register.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::registrations::Registrations;
use crate::sync::AtomicU8;

/// Memory that pieces are cut from.
pub(crate) struct Backing {
    start: NonNull<u8>,
    len: usize,
    registrations: Registrations,
    /// What is known about the pages since they were registered: see [`Backing::is_huge`].
    huge: AtomicU8,
    /// Whether the pages of the memory outlive its mapping while the kernel uses them, so that the
    /// mapping may go while bytes are still on their way out. Heap memory would be handed out again.
    pinned_by_page: bool,
    /// Unmaps or frees it when dropped.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is owned by `_owner`, which is `Send`, and is reached only through pieces, each
// of which owns its range alone or only reads it.
unsafe impl Send for Backing {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for Backing {}

/// The most that the kernel lets one registered buffer span.
pub(crate) const SLOT_SPAN: usize = 1 << 30;

/// What is known of whether pages are huge.
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

impl Backing {
    /// # Safety
    ///
    /// `owner` must keep `len` bytes from `start` mapped, initialised and at that address until it
    /// is dropped, and nobody else may access them.
    pub(crate) unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        pinned_by_page: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self {
            start,
            len,
            registrations: Registrations::default(),
            huge: AtomicU8::new(UNKNOWN),
            pinned_by_page,
            _owner: owner,
        })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The rings that have it registered.
    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    /// Whether rings may register it: heap memory shares its pages with other data.
    pub(crate) fn is_mapped(&self) -> bool {
        self.pinned_by_page
    }

    /// It was registered, or no ring has it any more. Pinned pages stay as they are; others may have been
    /// merged meanwhile.
    pub(crate) fn look_again_for_huge_pages(&self) {
        self.huge.store(UNKNOWN, Relaxed);
    }

    /// Whether any of the registered pages are huge; `look` finds out if it is not known.
    pub(crate) fn is_huge(&self, look: impl FnOnce(&Self) -> bool) -> bool {
        match self.huge.load(Relaxed) {
            UNKNOWN => {
                let huge = look(self);
                self.huge.store(if huge { YES } else { NO }, Relaxed);
                huge
            }
            known => known == YES,
        }
    }
}

/// Memory that buffers are cut from and that a ring can have registered.
///
/// Implemented for [`Region`](crate::Region), [`SharedRegion`](crate::SharedRegion),
/// [`BufferPool`](crate::BufferPool), and [`Frozen`](crate::Frozen), which stands for the region that it was cut from.
///
/// ```no_run
/// fn register(driver: &handoff::Driver, memory: &impl handoff::Memory) {
///     if let Err(error) = driver.register(memory) {
///         println!("sends go unregistered: {error}");
///     }
/// }
/// ```
#[allow(private_bounds, reason = "the memory itself is for this crate only")]
pub trait Memory: Backed {}

/// What has a backing.
pub(crate) trait Backed {
    fn backing(&self) -> &Arc<Backing>;
}
