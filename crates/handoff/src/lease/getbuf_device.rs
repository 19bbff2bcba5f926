//! The device that lends buffers of the kernel, and the files that it has bound.
//!
//! Minimum kernel, capability and return signal: as [`kernel`](super::kernel) says.

use std::rc::Rc;

use handoff_sys::getbuf;

use crate::ring::Endpoint;

pub(crate) struct GetBufShared {
    pub(crate) device: Endpoint,
    /// The ring that has the slots.
    pub(crate) ring: u32,
}

/// A file that the device has bound.
pub(crate) struct Binding {
    pub(crate) getbuf: Rc<GetBufShared>,
    pub(crate) id: u16,
}

impl Drop for Binding {
    fn drop(&mut self) {
        if self.getbuf.device.is_here()
            && let Err(error) = getbuf::unbind(&self.getbuf.device.fd, self.id)
        {
            tracing::warn!(%error, "a file stays bound to be lent from");
        }
    }
}
