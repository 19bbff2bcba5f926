//! What is lent through a handle: buffers, which come back to it, and spans, which go.

use handoff::{Buffer, Payload, Span};

use crate::boundary::Failure;
use crate::handles::{self, Kind, handoff_handle};

/// Something that C lends by its handle, which stands for an option: `None` is on loan.
pub(crate) trait Lent: Payload {
    /// In messages, with its article.
    const NAME: &'static str;

    /// Whether the handle stays, for what comes back.
    const COMES_BACK: bool;
}

impl Lent for Buffer {
    const NAME: &'static str = "a buffer";
    const COMES_BACK: bool = true;
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
    let lent = handles::with(handle, |place: &mut Option<B>| place.take().ok_or_else(on_loan))?;
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

fn on_loan() -> Failure {
    Failure::new(libc::EBUSY, "the buffer is on loan: wait until it is back")
}

/// Whether a payload is a span; if it is none, it is a buffer.
pub(crate) fn is_span(payload: handoff_handle) -> Result<bool, Failure> {
    let is_span = handles::is::<Option<Span>>(payload)?;
    if is_span || handles::is::<Option<Buffer>>(payload)? {
        return Ok(is_span);
    }
    Err(Failure::new(libc::EBADF, "the handle is neither a buffer nor a span, and one is wanted"))
}
