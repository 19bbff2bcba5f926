//! A buffer that nobody writes any more, so that many operations can hold it at once.
//!
//! Minimum kernel: any. It is registered if its region is.
//!
//! Contracts:
//! - nobody writes its bytes while any clone or part of it exists, in an operation or in hand;
//! - it becomes a buffer again only when the last of them gives it up. An operation that was forgotten, or
//!   that the kernel still has when its driver goes, keeps it frozen for ever.

use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::sync::Arc;

use super::{Backed, Backing, Buffer, Memory, Piece, within};

/// Bytes that nobody writes: [`Buffer::freeze`] makes them of a buffer.
///
/// Clones and [parts](Self::part) share the bytes, and cost a count. Any number of them can be on loan at once:
/// on any sockets and files, of any drivers and threads. A clone comes back from its loan like any buffer.
///
/// The region that the buffer was cut from is registered once for each driver that wants it so:
/// [`Driver::register`](crate::Driver::register) takes the region or the frozen buffer. Where the kernel can,
/// all drivers share one pinning of its pages.
///
/// ```no_run
/// use handoff::{Driver, Region};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new()?;
/// let mut region = Region::anonymous(1 << 16)?;
/// driver.register(&region)?;
/// let mut buffer = region.take(1 << 16).unwrap();
/// buffer.fill(7);
/// let news = buffer.freeze();
/// let mut all = Vec::new();
/// for reader in ["192.0.2.1:9000", "192.0.2.2:9000"] {
///     let socket = driver.socket(std::net::TcpStream::connect(reader)?)?;
///     all.push(socket.send(news.clone()).map_err(|refused| refused.error)?);
/// }
/// driver.block_on(async {
///     for sending in all {
///         drop(sending.await);
///     }
/// })?;
/// let buffer = news.try_unfreeze().expect("the last loan is over");
/// # Ok(()) }
/// ```
#[repr(transparent)]
pub struct Frozen(pub(crate) Piece);

impl Buffer {
    /// Ends the writing of the bytes in use, so that many operations can hold them at once.
    /// [`Frozen::try_unfreeze`] makes it a buffer again.
    ///
    /// ```
    /// use handoff::Buffer;
    ///
    /// let mut buffer = Buffer::from(b"hello".to_vec());
    /// buffer[0] = b'j';
    /// let frozen = buffer.freeze();
    /// let also = frozen.clone();
    /// assert_eq!(&also[..], b"jello");
    /// ```
    pub fn freeze(self) -> Frozen {
        Frozen(self.0.freeze())
    }
}

impl Frozen {
    /// A part, which shares the bytes. It is lent like the whole, and keeps the whole frozen.
    ///
    /// ```
    /// use handoff::Buffer;
    ///
    /// let page = Buffer::from(b"head body".to_vec()).freeze();
    /// let body = page.part(5..);
    /// assert_eq!(&body[..], b"body");
    /// assert_eq!(&body.part(..=2)[..], b"bod");
    /// ```
    ///
    /// # Panics
    ///
    /// When the range is not within the length.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Self {
        Self(self.0.share(within(range, self.len())))
    }

    /// Returns the buffer that was frozen, whole, even if this is only a part of it.
    ///
    /// # Errors
    ///
    /// Returns itself while other clones or parts exist, in hand or on loan.
    ///
    /// ```
    /// use handoff::Buffer;
    ///
    /// let frozen = Buffer::from(b"one".to_vec()).freeze();
    /// let on_its_way = frozen.part(1..);
    /// let frozen = frozen.try_unfreeze().expect_err("a part is there");
    /// drop(on_its_way);
    /// let mut buffer = frozen.try_unfreeze().expect("nobody else has it");
    /// buffer.copy_from_slice(b"two");
    /// ```
    pub fn try_unfreeze(self) -> Result<Buffer, Self> {
        self.0.unfreeze().map(Buffer).map_err(Self)
    }
}

impl Clone for Frozen {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0.share(0..self.0.len()))
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised, and stay at their address and as they are while any piece of
        // the frozen buffer is there, of which this is one.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr(), self.0.len()) }
    }
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(feature = "bytes")]
impl From<Frozen> for bytes::Bytes {
    /// Turns a frozen buffer into bytes without a copy. You can unfreeze it by a clone or part that stayed
    /// a [`Frozen`], when the bytes and all made of them are gone.
    ///
    /// ```
    /// let frozen = handoff::Buffer::from(b"hello".to_vec()).freeze();
    /// let mut bytes = bytes::Bytes::from(frozen.clone());
    /// assert_eq!(bytes.split_to(2), "he");
    /// drop(bytes);
    /// assert!(frozen.try_unfreeze().is_ok());
    /// ```
    fn from(frozen: Frozen) -> Self {
        Self::from_owner(frozen)
    }
}

impl Memory for Frozen {}
impl Backed for Frozen {
    fn backing(&self) -> &Arc<Backing> {
        self.0.memory().expect("a buffer is of memory")
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn it_comes_back_whole_with_the_last_part() {
        let mut region = Region::anonymous(4096).unwrap();
        let mut buffer = region.take(4096).unwrap();
        buffer[..3].copy_from_slice(b"abc");
        buffer.set_len(100);
        let frozen = buffer.freeze();
        let part = frozen.part(1..3);
        assert_eq!(&part[..], b"bc");
        assert_eq!(&part.part(1..)[..], b"c");
        let frozen = frozen.try_unfreeze().expect_err("a part is there");
        drop(frozen);
        let buffer = part.try_unfreeze().expect("the last is the part");
        assert_eq!((buffer.len(), buffer.capacity()), (100, 4096));
        assert_eq!(&buffer[..3], b"abc");
    }

    #[test]
    fn of_many_threads_that_give_it_up_one_at_most_has_it() {
        for _ in 0..200 {
            let frozen = Buffer::from(vec![7; 64]).freeze();
            let clones: Vec<_> = (0..4).map(|_| frozen.clone()).collect();
            let threads: Vec<_> = clones
                .into_iter()
                .map(|clone| std::thread::spawn(move || clone.try_unfreeze().is_ok()))
                .collect();
            let had = threads.into_iter().map(|it| it.join().unwrap());
            assert_eq!(had.filter(|had| *had).count(), 0, "this thread has a clone");
            assert_eq!(&frozen.try_unfreeze().unwrap()[..], [7; 64]);
        }
    }

    #[test]
    #[should_panic(expected = "is not within")]
    fn a_part_past_the_end_panics() {
        let frozen = Buffer::from(vec![7; 64]).freeze();
        drop(frozen.part(60..65));
    }
}
