//! Probes of receiving into user memory, each tried over loopback TCP.
//!
//! Kernel interface: `IORING_REGISTER_PBUF_RING`, `IORING_RECV_MULTISHOT`,
//! `IORING_RECVSEND_BUNDLE` with `IORING_FEAT_RECVSEND_BUNDLE`, `TCP_ZEROCOPY_RECEIVE`.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};

use handoff_sys::tcp::{ZEROCOPY_RECEIVE, ZerocopyReceive};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::answer::{Answer, Finding};
use super::memory::Scratch;
use super::{ring, send};

const GROUP: u16 = 0;
const BUFFERS: u16 = 4;
const BUFFER_LEN: usize = 512;

pub(super) fn provided_buffers() -> Finding {
    let ring = ring::ring()?;
    provide(&ring)?;
    Ok(Answer::yes())
}

pub(super) fn multishot() -> Finding {
    receive_twice(|fd| opcode::RecvMulti::new(fd, GROUP).build())
}

pub(super) fn bundle() -> Finding {
    if !ring::ring()?.params().is_feature_recvsend_bundle() {
        return Err(Answer::no("the kernel does not announce IORING_FEAT_RECVSEND_BUNDLE"));
    }
    receive_twice(|fd| opcode::RecvMultiBundle::new(fd, GROUP).build())
}

/// Registers a page as a ring of provided buffers: descriptors in front, buffers behind.
fn provide(ring: &IoUring) -> Result<Scratch, Answer> {
    let page = Scratch::page()?;
    let first = page.as_ptr().cast::<types::BufRingEntry>();
    for id in 0..BUFFERS {
        let buffer = page.as_ptr().wrapping_add((usize::from(id) + 1) * BUFFER_LEN);
        // SAFETY: the descriptors lie in the first 64 bytes of a zeroed page that nobody else
        // uses yet; all-zero descriptors are valid.
        let entry = unsafe { &mut *first.add(usize::from(id)) };
        entry.set_addr(buffer as u64);
        entry.set_len(BUFFER_LEN as u32);
        entry.set_bid(id);
    }
    // SAFETY: the tail lies in the first descriptor, inside the page, aligned to 2; the kernel
    // reads it concurrently, hence atomically.
    unsafe {
        let tail = types::BufRingEntry::tail(first);
        AtomicU16::from_ptr(tail.cast_mut()).store(BUFFERS, Ordering::Release);
    }
    // SAFETY: the kernel pins the page of descriptors; the buffers in it stay mapped until no
    // request can write to them any more, see `receive_twice`.
    unsafe { ring.submitter().register_buf_ring_with_flags(first as u64, BUFFERS, GROUP, 0) }
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => {
                Answer::no("the kernel refuses IORING_REGISTER_PBUF_RING: EINVAL")
            }
            _ => Answer::unknown(format!("IORING_REGISTER_PBUF_RING fails: {error}")),
        })?;
    Ok(page)
}

/// One request must deliver bytes, stay armed, and end when the peer has closed.
fn receive_twice(request: fn(types::Fd) -> squeue::Entry) -> Finding {
    let mut ring = ring::ring()?;
    let (mut peer, socket) = send::tcp_pair()?;
    let buffers = provide(&ring)?;
    let entry = request(types::Fd(socket.as_raw_fd()));
    // SAFETY: the entry points to nothing; the buffers that it will choose from are kept, below.
    unsafe { ring::push(&mut ring, &entry) };
    let outcome = converse(&mut ring, &mut peer);
    if outcome.is_err() {
        // The request may still be armed, and would then write to the buffers whenever data comes.
        std::mem::forget(buffers);
    }
    outcome
}

fn converse(ring: &mut IoUring, peer: &mut TcpStream) -> Finding {
    let lost = |error| Answer::unknown(format!("the request did not complete: {error}"));
    peer.write_all(b"handoff").map_err(lost)?;
    let first = ring::next(ring).map_err(lost)?;
    match first.result() {
        1.. if cqueue::more(first.flags()) => {}
        1.. => return Err(Answer::no("the request ended after one completion")),
        error if error == -libc::EINVAL => {
            return Err(Answer::no("the kernel refuses the request: EINVAL"));
        }
        error => return Err(lost(std::io::Error::from_raw_os_error(-error))),
    }
    peer.shutdown(Shutdown::Write).map_err(lost)?;
    let last = ring::next(ring).map_err(lost)?;
    if last.result() == 0 && !cqueue::more(last.flags()) {
        Ok(Answer::yes())
    } else {
        Err(Answer::unknown("the end of the stream did not end the request"))
    }
}

pub(super) fn tcp_zerocopy_receive() -> Finding {
    const LEN: usize = 4096;
    let (_peer, socket) = send::tcp_pair()?;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other.
    let mapping =
        unsafe { mmap(std::ptr::null_mut(), LEN, ProtFlags::READ, MapFlags::SHARED, &socket, 0) }
            .map_err(|error| Answer::no(format!("a TCP socket cannot be mapped: {error}")))?;
    let mut request =
        ZerocopyReceive { address: mapping as u64, length: LEN as u32, ..Default::default() };
    let mut len = size_of_val(&request) as libc::socklen_t;
    // SAFETY: the option's value is the structure that the kernel expects, with its length; the
    // mapping that it names is ours and nothing is in the receive queue yet.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            ZEROCOPY_RECEIVE,
            (&raw mut request).cast(),
            &raw mut len,
        )
    };
    let error = std::io::Error::last_os_error();
    // SAFETY: the mapping is ours and unused from here on. Unmapping it whole does not fail.
    let _ = unsafe { munmap(mapping, LEN) };
    if status < 0 {
        return Err(match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => Answer::no("the kernel does not know TCP_ZEROCOPY_RECEIVE"),
            _ => Answer::no(format!("TCP_ZEROCOPY_RECEIVE is refused: {error}")),
        });
    }
    Ok(Answer::yes().detail("maps only whole pages: payload-sized MTU and a header split needed"))
}
