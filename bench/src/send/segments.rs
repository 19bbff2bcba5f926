//! The baselines of `--segment`: a message goes as datagrams of one size, and the kernel copies each.

use std::{
    io, mem,
    os::fd::{AsRawFd as _, OwnedFd},
    rc::Rc,
};

use super::{payload::Payload, testbed::Testbed};
use crate::measure::{Engine, Slot, Tally};

/// The most datagrams that the kernel makes of one message.
pub(super) const MOST: u64 = 64;
const BETWEEN_LOOKS: u64 = 32;

/// Who cuts a message into datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The program does: each datagram is an entry of sendmmsg(2).
    ByCaller,
    /// The kernel or the NIC does, by `UDP_SEGMENT` with sendmsg(2).
    ByKernel,
}

pub(super) struct CopySegments {
    socket: OwnedFd,
    payload: Rc<Payload>,
    segment: u16,
    cut: Cut,
    sent: u64,
}

impl CopySegments {
    pub(super) fn new(
        testbed: &Testbed,
        payload: Rc<Payload>,
        segment: u16,
        cut: Cut,
    ) -> io::Result<Self> {
        Ok(Self { socket: testbed.connect()?, payload, segment, cut, sent: 0 })
    }

    fn send(&mut self) -> io::Result<u64> {
        let (address, len) = self.payload.message(self.sent);
        self.sent += 1;
        match self.cut {
            Cut::ByKernel => self.send_whole(address, len),
            Cut::ByCaller => self.send_each(address, len),
        }
    }

    fn send_whole(&self, address: *const libc::c_void, len: usize) -> io::Result<u64> {
        let mut piece = libc::iovec { iov_base: address.cast_mut(), iov_len: len };
        let mut control = [0_u64; 3];
        // SAFETY: all-zero bytes are a valid msghdr; the control space holds one message of 2 bytes, to which
        // the macros point; all of it outlives the call.
        let sent = unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_iov = &raw mut piece;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(2) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(2) as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(self.segment);
            libc::sendmsg(self.socket.as_raw_fd(), &raw const message, 0)
        };
        u64::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn send_each(&self, address: *const libc::c_void, len: usize) -> io::Result<u64> {
        let segment = usize::from(self.segment);
        let starts = (0..len).step_by(segment);
        let mut pieces: [libc::iovec; MOST as usize] =
            [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST as usize];
        // SAFETY: all-zero bytes are valid empty messages.
        let mut messages: [libc::mmsghdr; MOST as usize] = unsafe { mem::zeroed() };
        let mut count = 0;
        for ((start, piece), message) in starts.zip(&mut pieces).zip(&mut messages) {
            piece.iov_base = address.wrapping_byte_add(start).cast_mut();
            piece.iov_len = segment.min(len - start);
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: messages, vectors and payload outlive the call.
        let sent =
            unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        match sent {
            sent if sent == count as libc::c_int => Ok(len as u64),
            sent if sent < 0 => Err(io::Error::last_os_error()),
            sent => Err(io::Error::other(format!("it took {sent} of {count} datagrams"))),
        }
    }
}

impl Engine for CopySegments {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let before = self.sent;
        while !slot.is_over() {
            for _ in 0..BETWEEN_LOOKS {
                tally.bytes += self.send().map_err(|error| format!("send failed: {error}"))?;
            }
        }
        tally.operations = Some(self.sent - before);
        tally.copied = Some(tally.bytes);
        Ok(tally)
    }
}
