//! What is lent through a handle: buffers, which come back to it, frozen ones, of which a clone is lent, and spans,
//! which go.

use std::any::TypeId;

use handoff::{Buffer, Frozen, Payload, Span};

use crate::boundary::Failure;
use crate::handles::{self, Kind, handoff_handle};

/// Something that C lends by its handle, which stands for an option: `None` is on loan.
pub(crate) trait Lent: Payload {
    /// In messages, with its article.
    const NAME: &'static str;

    /// Whether the handle stays, for what comes back.
    const COMES_BACK: bool;

    /// What is lent of that which the handle stands for.
    fn of(place: &mut Option<Self>) -> Option<Self> {
        place.take()
    }
}

impl Lent for Buffer {
    const NAME: &'static str = "a buffer";
    const COMES_BACK: bool = true;
}

impl Lent for Frozen {
    const NAME: &'static str = "a frozen buffer";
    const COMES_BACK: bool = true;

    fn of(place: &mut Option<Self>) -> Option<Self> {
        place.clone()
    }
}

impl Lent for Span {
    const NAME: &'static str = "a span";
    const COMES_BACK: bool = false;
}

impl<B: Lent> Kind for Option<B> {
    const NAME: &'static str = B::NAME;
}

/// Lends what is behind a handle. `accept` has it, or gives it back with the reason; then nothing changed.
///
/// `accept` gets what is lent, and the handle that it will come back to: 0 if it will not.
pub(crate) fn lend<B: Lent>(
    handle: handoff_handle,
    accept: impl FnOnce(B, handoff_handle) -> Result<(), (B, Failure)>,
) -> Result<(), Failure> {
    let lent = handles::with(handle, |place: &mut Option<B>| B::of(place).ok_or_else(on_loan))?;
    match accept(lent, if B::COMES_BACK { handle } else { 0 }) {
        Ok(()) if B::COMES_BACK => {}
        Ok(()) => drop(handles::remove::<Option<B>>(handle)?),
        Err((lent, failure)) => {
            give_back(handle, lent);
            return Err(failure);
        }
    }
    Ok(())
}

/// Gives back to a handle what was lent; without the handle any more, it is dropped.
pub(crate) fn give_back<B: Lent>(handle: handoff_handle, lent: B) {
    let mut lent = Some(lent);
    let _ = handles::with(handle, |place: &mut Option<B>| {
        if place.is_none() {
            *place = lent.take();
        }
        Ok(())
    });
}

/// Looks at what is behind a handle, unless it is on loan.
pub(crate) fn with<B: Lent, T>(
    handle: handoff_handle,
    look: impl FnOnce(&mut B) -> Result<T, Failure>,
) -> Result<T, Failure> {
    handles::with(handle, |place: &mut Option<B>| look(place.as_mut().ok_or_else(on_loan)?))
}

#[cold]
pub(crate) fn on_loan() -> Failure {
    Failure::new(libc::EBUSY, "the buffer is on loan: wait until it is back")
}

/// Takes what is behind a handle for good, unless it is on loan. The handle stays, and [`give_back`] undoes it.
pub(crate) fn take<B: Lent>(handle: handoff_handle) -> Result<B, Failure> {
    handles::with(handle, |place: &mut Option<B>| place.take().ok_or_else(on_loan))
}

/// What can be sent and written.
pub(crate) enum Sendable {
    Buffer,
    Frozen,
    Span,
}

/// What of that a handle stands for.
pub(crate) fn sendable(payload: handoff_handle) -> Result<Sendable, Failure> {
    let kind = handles::kind(payload)?;
    if kind == TypeId::of::<Option<Buffer>>() {
        Ok(Sendable::Buffer)
    } else if kind == TypeId::of::<Option<Frozen>>() {
        Ok(Sendable::Frozen)
    } else if kind == TypeId::of::<Option<Span>>() {
        Ok(Sendable::Span)
    } else {
        let text = "the handle is neither a buffer, frozen or not, nor a span, and one is wanted";
        Err(Failure::new(libc::EBADF, text))
    }
}
