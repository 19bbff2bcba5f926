//! What this kernel can do for sending, receiving and files, found by trying.

use std::io;

use handoff_sys::sqe;
use io_uring::{Probe, cqueue, opcode, squeue, types};

use super::queues::Queues;

/// What this kernel has.
pub(crate) struct Features {
    pub(crate) reports_usage: bool,
    pub(crate) vectored_registered: bool,
    pub(crate) receives_registered: bool,
    pub(crate) sends_registered: bool,
    pub(crate) writes_vectors_registered: bool,
    pub(crate) truncates: bool,
}

impl Features {
    /// The kernel refuses unknown flags before it looks at the socket, so no socket is needed: for a bad
    /// descriptor the answer is EBADF if it knows the flags, and EINVAL if not.
    pub(crate) fn try_out(io: &mut Queues) -> io::Result<Self> {
        let nowhere = types::Fd(-1);
        let report =
            opcode::SendZc::new(nowhere, std::ptr::null(), 0).zc_flags(sqe::SEND_ZC_REPORT_USAGE);
        // SAFETY: all-zero bytes are a valid, empty message header.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        let vectored = opcode::SendMsgZc::new(nowhere, &message).ioprio(sqe::RECVSEND_FIXED_BUF);
        let receive = opcode::Recv::new(nowhere, std::ptr::null_mut(), 0)
            .ioprio(sqe::RECVSEND_FIXED_BUF)
            .build();
        let mut send = opcode::Send::new(nowhere, std::ptr::null(), 0).build();
        sqe::add_send_flags(&mut send, sqe::RECVSEND_FIXED_BUF);
        let vector = opcode::WritevFixed::new(nowhere, std::ptr::null(), 0, 0).build();
        // To try that would start a thread of the kernel's.
        let mut known = Probe::new();
        io.submitter().register_probe(&mut known)?;
        Ok(Self {
            reports_usage: Self::knows(io, &report.build())?,
            vectored_registered: Self::knows(io, &vectored.build())?,
            receives_registered: Self::knows(io, &receive)?,
            sends_registered: Self::knows(io, &send)?,
            writes_vectors_registered: Self::knows(io, &vector)?,
            truncates: known.is_supported(opcode::Ftruncate::CODE),
        })
    }

    fn knows(io: &mut Queues, entry: &squeue::Entry) -> io::Result<bool> {
        // SAFETY: the entry names no memory but an empty message that outlives the request, which
        // completes before this returns.
        unsafe { io.submission().push(entry) }.map_err(io::Error::other)?;
        let mut errno = 0;
        loop {
            let completion = io.await_next()?;
            if !cqueue::notif(completion.flags) {
                errno = -completion.result;
            }
            if !cqueue::more(completion.flags) {
                return Ok(errno != libc::EINVAL);
            }
        }
    }
}
