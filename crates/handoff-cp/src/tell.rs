//! Frames without payload, sent on every connection of a transfer.

use handoff::{Buffer, Socket};
use handoff_command::Failure;
use handoff_command::failure::Failed;

use crate::wire::Frame;

/// Sends `frame` on each socket, and returns when the kernel has taken all of them; `action` begins the
/// message of a failure.
pub(crate) async fn tell(
    sockets: impl IntoIterator<Item = &Socket>,
    frame: &Frame,
    action: &'static str,
) -> Result<(), Failure> {
    let mut sendings = Vec::new();
    for socket in sockets {
        sendings.push(socket.send(Buffer::from(frame.encode())).failed(action)?);
    }
    for sending in sendings {
        sending.await.failed(action)?.sent.failed(action)?;
    }
    Ok(())
}
