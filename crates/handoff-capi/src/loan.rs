//! What is lent through a handle: buffers, which come back to it, and spans, which go.

use handoff::{Buffer, Payload, Span};

use crate::boundary::Failure;
use crate::handles::{self, Object, handoff_handle, mistaken};

/// Something that C lends by its handle.
pub(crate) trait Lent: Payload {
    /// Whether the handle stays, for what comes back.
    const COMES_BACK: bool;

    /// Where the object is; `None` while it is on loan.
    fn place(object: &mut Object) -> Result<&mut Option<Self>, Failure>;
}

impl Lent for Buffer {
    const COMES_BACK: bool = true;

    fn place(object: &mut Object) -> Result<&mut Option<Self>, Failure> {
        match object {
            Object::Buffer(buffer) => Ok(buffer),
            other => Err(mistaken(other, "a buffer")),
        }
    }
}

impl Lent for Span {
    const COMES_BACK: bool = false;

    fn place(object: &mut Object) -> Result<&mut Option<Self>, Failure> {
        match object {
            Object::Span(span) => Ok(span),
            other => Err(mistaken(other, "a span")),
        }
    }
}

/// Lends what is behind a handle. `accept` has it, or gives it back with the reason; then nothing changed.
///
/// `accept` gets what is lent, and the handle that it will come back to: 0 if it will not.
pub(crate) fn lend<B: Lent>(
    handle: handoff_handle,
    accept: impl FnOnce(B, handoff_handle) -> Result<(), (B, Failure)>,
) -> Result<(), Failure> {
    let lent = handles::with(handle, |object| B::place(object)?.take().ok_or_else(on_loan))?;
    match accept(lent, if B::COMES_BACK { handle } else { 0 }) {
        Ok(()) if B::COMES_BACK => {}
        Ok(()) => drop(handles::remove(handle)?),
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
    let _ = handles::with(handle, |object| {
        let place = B::place(object)?;
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
    handles::with(handle, |object| look(B::place(object)?.as_mut().ok_or_else(on_loan)?))
}

fn on_loan() -> Failure {
    Failure::new(libc::EBUSY, "the buffer is on loan: wait until it is back")
}

/// Whether a payload is a span; if it is none, it is a buffer.
pub(crate) fn is_span(payload: handoff_handle) -> Result<bool, Failure> {
    handles::with(payload, |object| match object {
        Object::Buffer(_) => Ok(false),
        Object::Span(_) => Ok(true),
        other => Err(mistaken(other, "a buffer or a span")),
    })
}
