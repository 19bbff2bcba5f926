//! The layout of a send's rest for the kernel: header, address, message.
//!
//! Each record of an operation has one layout, at a fixed address. The next operation uses it again, so a
//! send moves and allocates little.

use std::mem::MaybeUninit;

use socket2::SockAddr;

use super::ancillary::{Beside, Room};
use super::loan::Loan;
use super::send::SendOp;
use super::transfer::TransferOp;
use crate::memory::AddressRange;
use crate::ring::MAX_REQUEST;
use crate::unix::UnixAddress;

/// The longest header before a lent payload, in bytes.
pub const MAX_HEADER: usize = 64;

/// The most pieces in one request. More need several requests (streams) or are refused (datagrams).
pub(crate) const MAX_PIECES: usize = libc::UIO_MAXIOV as usize;

pub(crate) struct Layout {
    header: [u8; MAX_HEADER],
    address: Option<SockAddr>,
    iovecs: Vec<libc::iovec>,
    message: MaybeUninit<libc::msghdr>,
    /// Room for a control message of 2 bytes.
    control: [u64; 3],
    /// For messages with descriptors, once there was one.
    room: Option<Box<Room>>,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            header: [0; MAX_HEADER],
            address: None,
            iovecs: Vec::new(),
            message: MaybeUninit::uninit(),
            control: [0; 3],
            room: None,
        }
    }
}

impl Layout {
    /// Takes over the header of a new send.
    ///
    /// # Panics
    ///
    /// When it is longer than [`MAX_HEADER`], which the caller has checked.
    pub(crate) fn set_header(&mut self, header: &[u8]) {
        self.header[..header.len()].copy_from_slice(header);
    }

    /// Takes over the destination of a new send.
    pub(crate) fn set_address(&mut self, address: SockAddr) {
        self.address = Some(address);
    }

    /// The destination of a send, if it has one; a destination left by an earlier send does not count.
    pub(crate) fn address(&self, op: &SendOp) -> Option<&SockAddr> {
        self.address.as_ref().filter(|_| op.addressed)
    }

    /// Header bytes that the kernel has not taken.
    pub(crate) fn header_left(&self, op: &SendOp) -> &[u8] {
        &self.header[op.done.min(op.header_len())..op.header_len()]
    }

    /// Lays out the rest of a send as a message, and returns its address. The header is left out when a
    /// request of its own carries it.
    pub(crate) fn message(&mut self, op: &SendOp, with_header: bool) -> *const libc::msghdr {
        self.iovecs.clear();
        let mut room = op.message_room();
        if with_header && op.done < op.header_len() {
            let left = &self.header[op.done..op.header_len()];
            self.iovecs.push(libc::iovec {
                iov_base: left.as_ptr().cast_mut().cast(),
                iov_len: left.len(),
            });
            // A header is no longer than the shortest pieces that go at once.
            room -= left.len();
        }
        let skip = op.done.saturating_sub(op.header_len());
        if let Some(loan) = &op.lent.loan {
            room = self.push_pieces(loan, skip, room);
        }
        self.of_iovecs(op, op.message_room() - room)
    }

    /// Lays out the rest of a transfer's pieces, as much as one request takes; of a direct file whole `blocks`,
    /// if more is left.
    pub(crate) fn vector(
        &mut self,
        loan: &Loan,
        skip: usize,
        blocks: Option<usize>,
    ) -> &[libc::iovec] {
        self.iovecs.clear();
        let laid_out = MAX_REQUEST - self.push_pieces(loan, skip, MAX_REQUEST);
        if let Some(blocks) = blocks
            && laid_out > blocks
            && skip + laid_out < loan.len()
        {
            self.take_back(laid_out % blocks);
        }
        &self.iovecs
    }

    /// Lays out the buffers of a receive, and room for what comes beside the bytes.
    pub(crate) fn room_for_message(&mut self, op: &TransferOp) -> *mut libc::msghdr {
        self.iovecs.clear();
        if let Some(loan) = &op.loan {
            self.push_pieces(loan, op.done, MAX_REQUEST);
        }
        let room = self.room.get_or_insert_with(Room::new);
        room.of_pieces(&mut self.iovecs, op.most_descriptors > 0)
    }

    /// What the kernel has just put there.
    pub(crate) fn arrived_beside(&self, most: usize) -> Beside {
        self.room.as_ref().map_or_else(Beside::default, |room| room.beside(most))
    }

    /// Whose message it was, as long as the record is that of its receive.
    pub(crate) fn sender(&self) -> Option<UnixAddress> {
        self.room.as_ref()?.sender()
    }

    /// Removes the last `len` bytes from the layout.
    fn take_back(&mut self, mut len: usize) {
        while let Some(last) = self.iovecs.last_mut()
            && len > 0
        {
            let taken = last.iov_len.min(len);
            last.iov_len -= taken;
            len -= taken;
            if last.iov_len == 0 {
                self.iovecs.pop();
            }
        }
    }

    /// Lays out pieces behind their first `skip` bytes, in at most `room` bytes; returns the room left.
    fn push_pieces(&mut self, loan: &Loan, mut skip: usize, mut room: usize) -> usize {
        for piece in loan.pieces() {
            // Skips empty ones as well.
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            if self.iovecs.len() == MAX_PIECES || room == 0 {
                break;
            }
            // SAFETY: `skip` is within the piece.
            let start = unsafe { piece.start().add(skip) };
            let iov_len = (piece.len() - skip).min(room);
            self.iovecs.push(libc::iovec { iov_base: start.as_ptr().cast(), iov_len });
            room -= iov_len;
            skip = 0;
        }
        room
    }

    /// As [`message`](Self::message), for the rest of a send of several datagrams that is one range, without a
    /// header.
    #[inline(always)]
    pub(crate) fn datagrams(&mut self, op: &SendOp, range: &AddressRange) -> *const libc::msghdr {
        let len = range.len.min(op.message_room());
        self.iovecs.clear();
        self.iovecs.push(libc::iovec { iov_base: range.start.cast(), iov_len: len });
        self.of_iovecs(op, len)
    }

    /// A message of the laid-out pieces, `len` bytes.
    #[inline(always)]
    fn of_iovecs(&mut self, op: &SendOp, len: usize) -> *const libc::msghdr {
        // SAFETY: all-zero bytes are a valid, empty message header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        if let Some(address) = self.address(op) {
            message.msg_name = address.as_ptr().cast_mut().cast();
            message.msg_namelen = address.len();
        }
        message.msg_iov = self.iovecs.as_mut_ptr();
        message.msg_iovlen = self.iovecs.len();
        if let Some(passing) = &op.passing {
            passing.put_into(&mut message);
        }
        if op.segment > 0 && len > op.segment.into() {
            self.cut(&mut message, op.segment);
        }
        self.message.write(message)
    }

    /// Makes the kernel cut a message into datagrams of this many bytes (`UDP_SEGMENT`, Linux 4.18).
    #[inline(always)]
    fn cut(&mut self, message: &mut libc::msghdr, segment: u16) {
        const LEN: u32 = size_of::<u16>() as u32;
        // SAFETY: these compute lengths only.
        let (space, len) = unsafe { (libc::CMSG_SPACE(LEN), libc::CMSG_LEN(LEN)) };
        debug_assert_eq!(space as usize, size_of_val(&self.control));
        message.msg_control = self.control.as_mut_ptr().cast();
        message.msg_controllen = space as _;
        // SAFETY: the space is aligned and as long as one control message with its value, and it stays at its
        // address as long as the record.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = len as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment);
        }
    }
}
