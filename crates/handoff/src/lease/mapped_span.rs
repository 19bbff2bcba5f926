//! Spans of a [`Window`](crate::Window): received pages that their sender may still write.
//!
//! Contracts:
//! - nobody here makes a slice of the bytes, unless the caller vouches for the sender.

use super::received::Span;
use crate::memory::View;

/// Received bytes in a [`Window`](crate::Window), or in the memory beside it. Dropping all parts of a span gives its
/// place back.
///
/// A sender on this machine may still have the page that it sent, over loopback and veth, also from another container,
/// and write to it while you read. So a span has no slice: [copy out](View::read) what you check before you check it. You
/// can lend it on as it is; then the kernel sends or writes what is there at that time.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::MappedReceiver, file: &handoff::File) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(span) = receiver.next_span().await {
///     let mut payload = span?;
///     let mut header = [0; 16];
///     payload.split_to(16).view().read(0, &mut header);
///     println!("{header:?}");
///     file.write_at(payload, 0)?.await?.result?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MappedSpan(Span);

impl MappedSpan {
    pub(crate) fn new(span: Span) -> Self {
        Self(span)
    }

    /// The bytes.
    pub fn view(&self) -> View<'_> {
        // SAFETY: the span has the bytes, in memory that it keeps, and nothing else here reads them meanwhile.
        unsafe { View::new(self.0.start(), self.0.count()) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the first `at` bytes off into a span of their own, which shares the place.
    ///
    /// # Panics
    ///
    /// When `at` is past the length.
    pub fn split_to(&mut self, at: usize) -> Self {
        Self(self.0.split_to(at))
    }

    /// The same bytes as a slice.
    ///
    /// # Safety
    ///
    /// As for [`MappedIntake::trust_peers`](crate::MappedIntake::trust_peers), for the sender of these bytes.
    pub unsafe fn into_span(self) -> Span {
        self.0
    }

    /// To be lent: only the kernel reads the bytes then.
    pub(crate) fn into_lent(self) -> Span {
        self.0
    }
}
