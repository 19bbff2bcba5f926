//! Plain send(2): the kernel copies every byte before it returns.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    rc::Rc,
};

use super::{payload::Payload, testbed::Testbed};
use crate::measure::{Engine, Slot, Tally};

/// The number of messages between two looks at the clock.
const BETWEEN_LOOKS: u64 = 32;

pub(super) struct Copy {
    socket: OwnedFd,
    payload: Rc<Payload>,
    sent: u64,
}

impl Copy {
    pub(super) fn new(testbed: &Testbed, payload: Rc<Payload>) -> io::Result<Self> {
        Ok(Self { socket: testbed.connect()?, payload, sent: 0 })
    }
}

impl Engine for Copy {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let mut messages = 0;
        while !slot.is_over() {
            for _ in 0..BETWEEN_LOOKS {
                let (address, len) = self.payload.message(self.sent);
                // SAFETY: the message is readable memory of the payload, which outlives the call.
                let sent = unsafe { libc::send(self.socket.as_raw_fd(), address, len, 0) };
                if sent < 0 {
                    return Err(format!("send failed: {}", io::Error::last_os_error()));
                }
                self.sent += 1;
                messages += 1;
                tally.bytes += sent as u64;
            }
        }
        tally.operations = Some(messages);
        tally.copied = Some(tally.bytes);
        Ok(tally)
    }
}
