//! Sending from memory that the kernel cannot read: a dma-buf.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::{mem, ptr, thread};

use handoff_sys::netdev;
use handoff_sys::netlink::{Attributes, Generic, Netlink};
use handoff_testbed::PairEnd;
use netlink_packet_core::NLM_F_ACK;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::testbed::{
    MIB, connect, counters, interface_index, listen, pair, run, split_headers, stream_of,
};

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`, `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: u64 = 0x4018_7542;

/// A dma-buf over memory with these bytes.
fn dma_buf(bytes: &[u8]) -> OwnedFd {
    let memory = rustix::fs::memfd_create("sent", MemfdFlags::ALLOW_SEALING).expect("memory");
    let memory = File::from(memory);
    memory.set_len(bytes.len() as u64).expect("grows");
    memory.write_all_at(bytes, 0).expect("writes");
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).expect("seals");
    let device = OpenOptions::new().read(true).write(true).open("/dev/udmabuf").expect("opens");
    let create = UdmabufCreate {
        memfd: memory.as_raw_fd() as u32,
        flags: 1,
        offset: 0,
        size: bytes.len() as u64,
    };
    // SAFETY: the structure is what the call reads, and outlives it.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    assert!(made >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the call has made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(made) }
}

/// Lets this end's interface send from it, as long as the first returned value lives.
fn bind(end: &PairEnd, memory: &OwnedFd) -> (Netlink, u32) {
    let index = interface_index(end);
    let asked = end.namespace().run(|| {
        let mut netlink = Netlink::generic()?;
        let family = netlink.family(netdev::FAMILY)?;
        let of = Attributes::new()
            .with(netdev::DMABUF_IFINDEX, &index.to_ne_bytes())
            .with(netdev::DMABUF_FD, &memory.as_raw_fd().to_ne_bytes());
        let answers = netlink.ask(Generic::new(family, netdev::BIND_TX, of), NLM_F_ACK)?;
        Ok::<_, handoff_sys::netlink::Refusal>((netlink, answers))
    });
    let (netlink, answers) = asked.expect("enters").expect("binds");
    let id = answers.iter().find_map(|answer| answer.attributes.number(netdev::DMABUF_ID));
    (netlink, id.expect("an id"))
}

/// `SO_ZEROCOPY`.
fn allow_zerocopy(socket: &TcpStream) {
    let on: c_int = 1;
    // SAFETY: the option is an integer that outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        )
    };
    assert_eq!(set, 0);
}

/// Sends these bytes of the binding's memory; returns how many were taken.
fn send(socket: c_int, binding: u32, offset: usize, bytes: usize) -> usize {
    // The place in the memory stands where an address would be.
    let mut piece = libc::iovec { iov_base: ptr::without_provenance_mut(offset), iov_len: bytes };
    // SAFETY: computes a length.
    let space = unsafe { libc::CMSG_SPACE(size_of::<u32>() as u32) } as usize;
    let mut control = vec![0_u64; space.div_ceil(8)];
    // SAFETY: all zeros is a message with nothing in it.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = space;
    // SAFETY: the control buffer has room for one header and the id behind it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = netdev::SCM_DEVMEM_DMABUF;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<u32>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<u32>().write_unaligned(binding);
    }
    // SAFETY: the message and what it points to outlive the call.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_ZEROCOPY) };
    assert!(sent > 0, "{}", io::Error::last_os_error());
    sent as usize
}

#[test]
fn a_stream_is_sent_out_of_a_dma_buf() {
    let pair = pair(1_500);
    split_headers(&pair.right);
    let sent = stream_of(MIB);
    let memory = dma_buf(&sent);
    let (_bound, binding) = bind(&pair.left, &memory);
    for offloads in ["tso on", "tso off"] {
        run(&pair.left, &format!("ethtool -K {} {offloads}", pair.left.device()));
        let listener = listen(&pair.right, pair.right.v4());
        let left = connect(&pair.left, pair.right.v4());
        allow_zerocopy(&left);
        let (mut right, _) = listener.accept().expect("accepts");
        let receiver = thread::spawn(move || {
            let mut received = Vec::new();
            right.read_to_end(&mut received).expect("receives");
            received
        });
        let mut at = 0;
        while at < sent.len() {
            at += send(left.as_raw_fd(), binding, at, sent.len() - at);
        }
        drop(left);
        assert!(receiver.join().expect("ends") == sent, "{offloads}: what arrived differs");
    }
    let count = counters(&pair.right);
    assert_eq!(count["dma_refused"] + count["malformed"], 0, "{count:?}");
}
