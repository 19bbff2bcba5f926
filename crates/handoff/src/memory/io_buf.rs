//! Memory of others, lent as it is: by a contract that its owner keeps.
//!
//! Minimum kernel: any. Such memory is not registered: it belongs to any owner.
//!
//! Contracts:
//! - an operation holds the owner until the kernel lets go of the bytes, and calls nothing of it meanwhile;
//! - the owner is put in place before it is asked for its bytes, and stays there;
//! - the drop of an owner is foreign code. What the driver drops, it drops on its thread, with the wakers, when all news
//!   of a turn is told;
//! - a thread that lends again and again allocates nothing for owners of up to four words.

use std::any::TypeId;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Wake;

/// The owner of bytes that an operation may read, as they are: implement it to lend memory of your own kind.
///
/// Implemented for `Arc<[u8]>`, `Arc<Vec<u8>>`, `Box<[u8]>`, `Vec<u8>` and `&'static [u8]`; with the feature `bytes`
/// also for `bytes::Bytes` and `bytes::BytesMut`. All of the bytes in use are lent. Not for mapped files: others may
/// write or truncate them.
///
/// The value is moved into the operation, and comes back with the return signal. What nobody waits for the driver drops:
/// on its own thread, with the wakers, when all news of a turn is told, so that the drop may use the driver. If the driver
/// goes while the kernel still has the bytes, the value is never dropped. A value of more than four words costs an
/// allocation each time it is lent.
///
/// ```
/// use std::ptr::NonNull;
/// use std::sync::Arc;
///
/// use handoff::IoBuf;
///
/// /// A record of an arena that is full: nobody writes it any more.
/// struct Record {
///     arena: Arc<Vec<u8>>,
///     begin: usize,
///     len: usize,
/// }
///
/// // SAFETY: the vector keeps its bytes where they are, and nobody can write them while it is shared.
/// unsafe impl IoBuf for Record {
///     fn stable_ptr(&mut self) -> NonNull<u8> {
///         NonNull::from(&self.arena[self.begin..][..self.len]).cast()
///     }
///
///     fn stable_len(&self) -> usize {
///         self.len
///     }
/// }
///
/// fn send(socket: &handoff::Socket, record: Record) -> handoff::Result<handoff::Sending<Record>> {
///     socket.send(record).map_err(|refused| refused.error)
/// }
/// ```
///
/// # Safety
///
/// As long as the value is there, and nobody calls anything of it but these two methods:
/// - [`stable_ptr`](Self::stable_ptr) is the beginning of [`stable_len`](Self::stable_len) initialised bytes, which stay
///   mapped and at their address, also when the value is moved or forgotten;
/// - nobody writes these bytes: no other handle of this process, no other process, no device;
/// - both methods always return the same.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that can be lent",
    note = "implement `IoBuf`, or `IoBufMut`, for memory of your own kind"
)]
pub unsafe trait IoBuf: Sized + 'static {
    /// Where the bytes begin; for no bytes any address.
    fn stable_ptr(&mut self) -> NonNull<u8>;

    /// How many bytes there are.
    fn stable_len(&self) -> usize;
}

/// The owner of bytes that an operation may write, as they are.
///
/// Implemented for `Box<[u8]>` and `Vec<u8>`, with the feature `bytes` also for `bytes::BytesMut`. The bytes in use are
/// written over, and keep their number; [`Append`](crate::Append) fills the room behind those of a vector.
///
/// ```
/// # async fn example(socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// let received = socket.receive_into(vec![0; 4096])?.await?;
/// let mut bytes = received.buffer;
/// bytes.truncate(received.result?);
/// # Ok(()) }
/// ```
///
/// # Safety
///
/// As for [`IoBuf`]. Besides, the bytes belong to this value alone: nobody else reads them, and they may be written by
/// way of the pointer.
pub unsafe trait IoBufMut: IoBuf {}

/// How bytes are lent that a slice reaches.
macro_rules! lent_as_slice {
    ($(#[$gate:meta])? $type:ty, $why:literal) => {
        $(#[$gate])?
        #[doc = $why]
        // SAFETY: as the macro's user says.
        unsafe impl IoBuf for $type {
            fn stable_ptr(&mut self) -> NonNull<u8> {
                NonNull::from(&self[..]).cast()
            }

            fn stable_len(&self) -> usize {
                self.len()
            }
        }
    };
}

/// The same for bytes that their owner has alone.
macro_rules! lent_as_slice_mut {
    ($(#[$gate:meta])? $type:ty, $why:literal) => {
        $(#[$gate])?
        #[doc = $why]
        // SAFETY: as the macro's user says.
        unsafe impl IoBuf for $type {
            fn stable_ptr(&mut self) -> NonNull<u8> {
                NonNull::from(&mut self[..]).cast()
            }

            fn stable_len(&self) -> usize {
                self.len()
            }
        }

        $(#[$gate])?
        // SAFETY: as above; the value has the bytes alone.
        unsafe impl IoBufMut for $type {}
    };
}

lent_as_slice!(&'static [u8], "They are there for good, and are only read.");
lent_as_slice!(
    Arc<[u8]>,
    "A handle that is lent keeps the bytes, and nobody can write what is shared."
);
lent_as_slice!(Arc<Vec<u8>>, "The same, and the vector does not grow.");
lent_as_slice_mut!(Box<[u8]>, "The box owns its bytes alone, on the heap.");
lent_as_slice_mut!(Vec<u8>, "The vector owns its bytes alone, on the heap.");
lent_as_slice!(
    #[cfg(feature = "bytes")]
    bytes::Bytes,
    "A handle that is lent keeps the bytes, which nobody writes."
);
lent_as_slice_mut!(
    #[cfg(feature = "bytes")]
    bytes::BytesMut,
    "The handle owns its bytes alone."
);

/// Words of an owner that is kept in place.
const WORDS: usize = 4;

/// The most that a thread keeps for owners that it lends later.
const SPARE: usize = 1024;

thread_local! {
    static SPARES: RefCell<Vec<Arc<LentOwner>>> = const { RefCell::new(Vec::new()) };
}

type Place = MaybeUninit<[usize; WORDS]>;

/// The owner that a loan has. Called as a waker, it drops the owner, which nobody wants then.
pub(crate) struct LentOwner {
    /// The owner, or a pointer to it where it is larger.
    place: Place,
    /// What is there, if anything.
    kind: Option<Kind>,
}

// SAFETY: a loan and its driver have it, and neither leaves the driver's thread; empty ones stay on their thread too.
// Being a waker asks for this.
unsafe impl Send for LentOwner {}
// SAFETY: as above.
unsafe impl Sync for LentOwner {}

#[derive(Clone, Copy)]
struct Kind {
    id: fn() -> TypeId,
    /// Drops the owner in this place.
    drop: unsafe fn(*mut Place),
}

/// Whether such an owner has room in place.
const fn fits<B>() -> bool {
    size_of::<B>() <= size_of::<Place>() && align_of::<B>() <= align_of::<Place>()
}

/// # Safety
///
/// The place has such an owner, and has none after that.
unsafe fn take_out<B>(place: *mut Place) -> B {
    // SAFETY: as the caller says; what is larger is in a box.
    unsafe {
        if const { fits::<B>() } {
            place.cast::<B>().read()
        } else {
            *Box::from_raw(place.cast::<*mut B>().read())
        }
    }
}

/// # Safety
///
/// As for [`take_out`].
unsafe fn drop_owner<B>(place: *mut Place) {
    // SAFETY: as the caller says.
    drop(unsafe { take_out::<B>(place) });
}

impl LentOwner {
    const EMPTY: Self = Self { place: MaybeUninit::uninit(), kind: None };

    /// Puts an owner in its place; returns its bytes, too.
    pub(super) fn lend<B: IoBuf>(owner: B) -> (Arc<Self>, NonNull<u8>, usize) {
        let (lent, kept) = Self::keep_owner(owner);
        // SAFETY: it was just put there, and nobody else reaches it. If it panics, it is dropped with the place.
        let kept = unsafe { &mut *kept };
        let len = kept.stable_len();
        (lent, kept.stable_ptr(), len)
    }

    /// Puts an owner in its place, and tells where it is.
    pub(crate) fn keep_owner<B: 'static>(owner: B) -> (Arc<Self>, *mut B) {
        // A thread that ends has no spares.
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        let mut lent = spare.unwrap_or_else(|| Arc::new(Self::EMPTY));
        let kept = Arc::get_mut(&mut lent).expect("a spare has one owner").put(owner);
        (lent, kept)
    }

    fn put<B: 'static>(&mut self, owner: B) -> *mut B {
        debug_assert!(self.kind.is_none(), "a place has one owner");
        let place = &raw mut self.place;
        let kept = if const { fits::<B>() } {
            let kept = place.cast::<B>();
            // SAFETY: it has room there.
            unsafe { kept.write(owner) };
            kept
        } else {
            let kept = Box::into_raw(Box::new(owner));
            // SAFETY: a pointer has room there.
            unsafe { place.cast::<*mut B>().write(kept) };
            kept
        };
        self.kind = Some(Kind { id: TypeId::of::<B>, drop: drop_owner::<B> });
        kept
    }

    /// The owner of a loan that is over; `None` while somebody else has the place.
    pub(crate) fn give_back<B: 'static>(mut lent: Arc<Self>) -> Option<B> {
        let place = Arc::get_mut(&mut lent)?;
        let kind = place.kind.take().expect("it was lent");
        assert!((kind.id)() == TypeId::of::<B>(), "what was lent comes back as the same kind");
        // SAFETY: such an owner is there, and the place has no kind any more.
        let owner = unsafe { take_out(&raw mut place.place) };
        lent.keep_place();
        Some(owner)
    }

    /// Keeps an empty place for later.
    fn keep_place(self: Arc<Self>) {
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(self);
            }
        });
    }

    fn drop_what_is_there(&mut self) {
        if let Some(kind) = self.kind.take() {
            // SAFETY: an owner of this kind is there, and the place has no kind any more.
            unsafe { (kind.drop)(&raw mut self.place) };
        }
    }
}

impl Wake for LentOwner {
    fn wake(mut self: Arc<Self>) {
        if let Some(place) = Arc::get_mut(&mut self) {
            place.drop_what_is_there();
            self.keep_place();
        }
    }
}

impl Drop for LentOwner {
    fn drop(&mut self) {
        self.drop_what_is_there();
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;
    use crate::memory::Piece;

    /// Reads what a loan has, as the kernel would.
    fn read(piece: &Piece) -> Vec<u8> {
        // SAFETY: the owner keeps so many initialised bytes there, and nobody writes them.
        unsafe { std::slice::from_raw_parts(piece.start().as_ptr(), piece.len()) }.to_vec()
    }

    fn goes_and_comes_back<B: IoBuf + AsRef<[u8]>>(owner: B) {
        let (at, before) = (owner.as_ref().as_ptr(), owner.as_ref().to_vec());
        let piece = Piece::of_owner(owner);
        // Moves as operations do.
        let moved = Box::new(piece);
        assert_eq!(read(&moved), before);
        let again: B = moved.into_owner();
        assert_eq!((again.as_ref().as_ptr(), again.as_ref()), (at, &before[..]));
    }

    #[test]
    fn owners_of_every_kind_go_and_come_back() {
        goes_and_comes_back(&b"for good"[..]);
        goes_and_comes_back(Arc::<[u8]>::from(&b"shared"[..]));
        goes_and_comes_back(Box::<[u8]>::from(&b"alone"[..]));
        goes_and_comes_back(b"alone, too".to_vec());
        goes_and_comes_back(Vec::new());
        #[cfg(feature = "bytes")]
        {
            goes_and_comes_back(bytes::Bytes::from(b"of the heap".to_vec()).slice(3..));
            goes_and_comes_back(bytes::BytesMut::from(&b"alone again"[..]).split_off(4));
        }
        let shared = Arc::new(b"a vector".to_vec());
        let piece = Piece::of_owner(Arc::clone(&shared));
        assert_eq!(read(&piece), b"a vector");
        drop(piece);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn what_is_written_is_there() {
        fn fill<B: IoBufMut>(owner: B) -> B {
            let piece = Piece::of_owner(owner);
            for at in 0..piece.len() {
                // SAFETY: the owner has so many bytes there, alone.
                unsafe { piece.start().add(at).write(at as u8) };
            }
            piece.into_owner()
        }
        assert_eq!(fill(vec![9; 3]), [0, 1, 2]);
        assert_eq!(fill(Box::<[u8]>::from([9; 3]))[..], [0, 1, 2]);
        #[cfg(feature = "bytes")]
        assert_eq!(fill(bytes::BytesMut::zeroed(3)), &[0, 1, 2][..]);
    }

    /// Larger than a place, or aligned otherwise; stays on its thread, and tells of its end.
    #[repr(align(32))]
    struct Large(Vec<u8>, Rc<RefCell<usize>>, [usize; 9]);

    // SAFETY: the vector has its bytes alone, on the heap.
    unsafe impl IoBuf for Large {
        fn stable_ptr(&mut self) -> NonNull<u8> {
            assert!(self.0.len() < 100, "as it was told to");
            self.0.stable_ptr()
        }

        fn stable_len(&self) -> usize {
            self.0.stable_len()
        }
    }

    impl Drop for Large {
        fn drop(&mut self) {
            *self.1.borrow_mut() += 1;
        }
    }

    #[test]
    fn an_owner_is_dropped_once_whoever_drops_it() {
        let ends = Rc::new(RefCell::new(0));
        let lend = |len| Piece::of_owner(Large(vec![7; len], Rc::clone(&ends), [1; 9]));
        drop(lend(3));
        assert_eq!(*ends.borrow(), 1);
        let back: Large = lend(3).into_owner();
        assert_eq!((&back.0[..], back.2, *ends.borrow()), (&[7; 3][..], [1; 9], 1));
        drop(back);
        assert_eq!(*ends.borrow(), 2);
        let mut later: Vec<Waker> = Vec::new();
        lend(3).let_go(&mut |waker| later.push(waker));
        assert_eq!(*ends.borrow(), 2, "it waits for the wakers");
        later.into_iter().for_each(Waker::wake);
        assert_eq!(*ends.borrow(), 3);
        let asks = std::panic::AssertUnwindSafe(|| lend(100));
        assert!(std::panic::catch_unwind(asks).is_err());
        assert_eq!(*ends.borrow(), 4, "one that panics when it is asked");
    }

    #[test]
    #[should_panic(expected = "comes back as the same kind")]
    fn another_kind_does_not_come_back() {
        let _: Box<[u8]> = Piece::of_owner(vec![7; 3]).into_owner();
    }
}
