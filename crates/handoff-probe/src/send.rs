//! Probes of sending from user memory, each tried with one page over loopback.
//!
//! Kernel interface: `IORING_OP_SEND_ZC` and `IORING_OP_SENDMSG_ZC`, `SO_ZEROCOPY` with `MSG_ZEROCOPY`.
//! Loopback copies what it delivers, so these answers only say that the kernel takes the request and
//! returns the buffer; whether the copy is avoided depends on the interface.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use handoff_sys::sqe;
use handoff_sys::zerocopy::{self, Message};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};

use super::answer::{Answer, Finding};
use super::memory::{Scratch, lock_limit, without_memory};
use super::ring;

pub(super) fn send_zc() -> Finding {
    let mut ring = ring::ring()?;
    ring::knows(&ring, opcode::SendZc::CODE, "SEND_ZC")?;
    let (page, pair) = (Scratch::page()?, UdpPair::new()?);
    lend(&mut ring, &pair.send_zc(&page).build(), &page).map(|_| Answer::yes())
}

pub(super) fn send_zc_registered() -> Finding {
    let mut ring = ring::ring()?;
    ring::knows(&ring, opcode::SendZc::CODE, "SEND_ZC")?;
    let (page, pair) = (Scratch::page()?, UdpPair::new()?);
    ring::register(&ring, &page)?;
    lend(&mut ring, &pair.send_zc(&page).buf_index(Some(0)).build(), &page).map(|_| Answer::yes())
}

pub(super) fn usage_report() -> Finding {
    let mut ring = ring::ring()?;
    ring::knows(&ring, opcode::SendZc::CODE, "SEND_ZC")?;
    let (page, pair) = (Scratch::page()?, UdpPair::new()?);
    let entry = pair.send_zc(&page).zc_flags(sqe::SEND_ZC_REPORT_USAGE).build();
    let notification = lend(&mut ring, &entry, &page)?;
    // Loopback copies what it delivers, so a kernel that has usage reports reports a copy here.
    if notification.result() as u32 & sqe::NOTIF_USAGE_ZC_COPIED != 0 {
        Ok(Answer::yes())
    } else {
        Err(Answer::unknown("the kernel takes the flag, but does not report loopback's copy"))
    }
}

pub(super) fn sendmsg_zc() -> Finding {
    send_message(false)
}

pub(super) fn sendmsg_zc_registered() -> Finding {
    send_message(true)
}

fn send_message(registered: bool) -> Finding {
    let mut ring = ring::ring()?;
    ring::knows(&ring, opcode::SendMsgZc::CODE, "SENDMSG_ZC")?;
    let (page, pair) = (Scratch::page()?, UdpPair::new()?);
    let half = page.len() / 2;
    let mut pieces = [
        libc::iovec { iov_base: page.as_ptr().cast(), iov_len: half },
        libc::iovec { iov_base: page.as_ptr().wrapping_add(half).cast(), iov_len: half },
    ];
    // SAFETY: all zeroes is a valid msghdr: no address, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    let mut build = opcode::SendMsgZc::new(pair.fd(), &raw const message);
    if registered {
        ring::register(&ring, &page)?;
        build = build.ioprio(sqe::RECVSEND_FIXED_BUF);
    }
    let mut entry = build.build();
    if registered {
        sqe::set_buf_index(&mut entry, 0);
    }
    lend(&mut ring, &entry, &page).map(|_| Answer::yes())
}

/// Sends a page and waits until it is back; returns the notification.
fn lend(
    ring: &mut IoUring,
    entry: &squeue::Entry,
    page: &Scratch,
) -> Result<cqueue::Entry, Answer> {
    let lost = |error| Answer::unknown(format!("waiting for a completion fails: {error}"));
    // SAFETY: the header and its pieces are read while submitting, which `next` does at once, and
    // stay alive in the caller; of the payload the kernel holds the pages themselves.
    unsafe { ring::push(ring, entry) };
    let sent = ring::next(ring).map_err(lost)?;
    match sent.result() {
        bytes if bytes == page.len() as i32 => {}
        bytes if bytes >= 0 => {
            return Err(Answer::unknown(format!("{bytes} of {} bytes were sent", page.len())));
        }
        error => return Err(explain(-error)),
    }
    if !cqueue::more(sent.flags()) {
        return Err(Answer::unknown("the completion announces no notification"));
    }
    let notification = ring::next(ring).map_err(lost)?;
    if !cqueue::notif(notification.flags()) {
        return Err(Answer::unknown("the second completion is no notification"));
    }
    Ok(notification)
}

/// What an error of a zero-copy send means for the mechanism.
fn explain(errno: i32) -> Answer {
    match errno {
        libc::EINVAL => Answer::no("the kernel refuses the request: EINVAL"),
        libc::EOPNOTSUPP => Answer::no("not for this kind of socket: EOPNOTSUPP"),
        libc::ENOMEM => without_memory(lock_limit()),
        libc::ENOBUFS => no_buffers(),
        libc::EPERM | libc::EACCES => {
            Answer::no(format!("not allowed: {}", std::io::Error::from_raw_os_error(errno)))
                .remedy("see the firewall and the security module of this machine")
        }
        _ => Answer::unknown(format!("{}", std::io::Error::from_raw_os_error(errno))),
    }
}

pub(super) fn msg_zerocopy_udp() -> Finding {
    let pair = UdpPair::new()?;
    msg_zerocopy(&pair.sender)
}

pub(super) fn msg_zerocopy_tcp() -> Finding {
    let (sender, _receiver) = tcp_pair()?;
    msg_zerocopy(&sender)
}

fn msg_zerocopy(socket: &(impl AsFd + AsRawFd)) -> Finding {
    zerocopy::enable(socket.as_fd())
        .map_err(|error| Answer::no(format!("SO_ZEROCOPY is refused: {error}")))?;
    let page = Scratch::page()?;
    // SAFETY: the page is mapped and nobody writes to it.
    let bytes = unsafe { std::slice::from_raw_parts(page.as_ptr(), page.len()) };
    let flags = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
    send(socket, bytes, flags).map_err(|error| match error {
        rustix::io::Errno::NOBUFS => no_buffers(),
        error => Answer::no(format!("MSG_ZEROCOPY is refused: {error}")),
    })?;
    let timeout = Timespec { tv_sec: 2, tv_nsec: 0 };
    let mut waiting = [PollFd::new(socket, PollFlags::ERR)];
    match retry_on_intr(|| poll(&mut waiting, Some(&timeout))) {
        Ok(1..) => {}
        Ok(0) => return Err(Answer::unknown("no completion on the error queue within 2 s")),
        Err(error) => return Err(Answer::unknown(format!("poll fails: {error}"))),
    }
    match zerocopy::read_error_queue(socket.as_fd()) {
        Ok(Some(Message::Completion(_))) => Ok(Answer::yes()),
        Ok(other) => Err(Answer::unknown(format!("the error queue tells no return: {other:?}"))),
        Err(error) => Err(Answer::unknown(format!("the error queue cannot be read: {error}"))),
    }
}

/// A connected UDP sender and its receiver, which only keeps the port open.
struct UdpPair {
    sender: UdpSocket,
    _receiver: UdpSocket,
}

impl UdpPair {
    fn new() -> Result<Self, Answer> {
        let open = || {
            let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            sender.connect(receiver.local_addr()?)?;
            Ok(Self { sender, _receiver: receiver })
        };
        open().map_err(|error| no_loopback(&error))
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.sender.as_raw_fd())
    }

    fn send_zc(&self, page: &Scratch) -> opcode::SendZc {
        opcode::SendZc::new(self.fd(), page.as_ptr(), page.len() as u32)
    }
}

/// A connected TCP sender and its receiver.
pub(super) fn tcp_pair() -> Result<(TcpStream, TcpStream), Answer> {
    let open = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address: SocketAddr = listener.local_addr()?;
        let sender = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        // Somebody else may find the port first and be accepted instead; skip until it is us.
        loop {
            let (receiver, peer) = listener.accept()?;
            if peer == sender.local_addr()? {
                return Ok((sender, receiver));
            }
        }
    };
    open().map_err(|error: std::io::Error| no_loopback(&error))
}

fn no_buffers() -> Answer {
    Answer::no("ENOBUFS: locked or option memory is used up")
        .remedy("ulimit -l KIB, or sysctl net.core.optmem_max")
}

fn no_loopback(error: &std::io::Error) -> Answer {
    Answer::unknown(format!("no socket pair over loopback: {error}"))
        .remedy("ip link set lo up, and let loopback through the firewall")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::State;

    #[test]
    fn errors_of_a_send_are_told_apart() {
        assert_eq!(explain(libc::EINVAL).state, State::No);
        assert_eq!(explain(libc::EOPNOTSUPP).state, State::No);
        let memory = explain(libc::ENOMEM);
        assert!(memory.remedy.is_some() && memory.reason.expect("why").starts_with("ENOMEM: "));
        assert!(explain(libc::ENOBUFS).remedy.expect("remedy").contains("optmem_max"));
        assert_eq!(explain(libc::ENETUNREACH).state, State::Unknown);
    }
}
