//! What goes beside the bytes of a message on a Unix socket: descriptors (`SCM_RIGHTS`), and the name of the sender.
//!
//! Minimum kernel: any; with a ring 5.13, which takes messages with control data. Capability: none.
//!
//! Contracts:
//! - a send owns its descriptors until the kernel has taken its first byte, or none will go: then they are closed here,
//!   and the message has its own;
//! - each descriptor that the kernel makes for us has an owner at once: what is not handed out is closed.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use socket2::SockAddr;

use crate::unix::{UnixAddress, named};

/// The most descriptors in a message (`SCM_MAX_FD`).
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// `SCM_PIDFD` of `linux/socket.h`: a descriptor of the sender's process, for sockets with `SO_PASSPIDFD`.
const SCM_PIDFD: i32 = 4;

/// Bytes of control messages: the most descriptors, and what other options of a socket may add.
const ROOM: usize = 1032 + 128;

/// Descriptors that go with a send.
pub(crate) struct Passing {
    /// A control message, aligned.
    control: Vec<u64>,
    /// Bytes of it.
    len: usize,
    _descriptors: Vec<OwnedFd>,
}

impl Passing {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> Self {
        let bytes = size_of_val(&descriptors[..]) as u32;
        // SAFETY: these compute lengths only.
        let (space, len) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        let mut control = vec![0u64; (space as usize).div_ceil(size_of::<u64>())];
        let header = control.as_mut_ptr().cast::<libc::cmsghdr>();
        // SAFETY: the room is aligned for a header, zeroed, and has it and the numbers behind it.
        unsafe {
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = len as _;
            let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
            for (place, descriptor) in descriptors.iter().enumerate() {
                numbers.add(place).write_unaligned(descriptor.as_raw_fd());
            }
        }
        Self { control, len: space as usize, _descriptors: descriptors }
    }

    /// Has a message carry them.
    pub(crate) fn put_into(&self, message: &mut libc::msghdr) {
        message.msg_control = self.control.as_ptr().cast_mut().cast();
        message.msg_controllen = self.len as _;
    }
}

/// What came beside the bytes of a message.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The message was longer than the buffer.
    pub(crate) truncated: bool,
    /// Descriptors were lost, and the others are closed.
    pub(crate) is_cut: bool,
    pub(crate) has_sender: bool,
}

/// Where the kernel puts it. A record keeps this for its next message.
pub(crate) struct Room {
    control: [u64; ROOM / size_of::<u64>()],
    name: libc::sockaddr_un,
    message: libc::msghdr,
}

impl Room {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: all of it are integers and pointers, which may be zero.
        Box::new(unsafe { MaybeUninit::<Self>::zeroed().assume_init() })
    }

    /// A message of these pieces, with room for control data if `descriptors` are wanted.
    pub(crate) fn of_pieces(
        &mut self,
        pieces: &mut [libc::iovec],
        descriptors: bool,
    ) -> *mut libc::msghdr {
        let Self { control, name, message } = self;
        message.msg_name = (&raw mut *name).cast();
        message.msg_namelen = size_of_val(name) as libc::socklen_t;
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = if descriptors { size_of_val(control) as _ } else { 0 };
        message.msg_flags = 0;
        message
    }

    /// What came; the kernel has just filled the room. More than `most` descriptors are too many.
    pub(crate) fn beside(&self, most: usize) -> Beside {
        let message = &self.message;
        let mut beside = Beside {
            truncated: message.msg_flags & libc::MSG_TRUNC != 0,
            has_sender: message.msg_namelen as usize > size_of::<libc::sa_family_t>(),
            ..Beside::default()
        };
        if most == 0 {
            return beside;
        }
        // SAFETY: the kernel has laid out whole control messages, of the length that it has told.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(message);
            while let Some(told) = header.as_ref() {
                let bytes = told.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
                // These descriptors are new, and told of once.
                let made = (0..bytes / size_of::<RawFd>())
                    .map(|place| OwnedFd::from_raw_fd(numbers.add(place).read_unaligned()));
                match (told.cmsg_level, told.cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_RIGHTS) => beside.descriptors.extend(made),
                    (libc::SOL_SOCKET, SCM_PIDFD) => made.for_each(drop),
                    _ => {}
                }
                header = libc::CMSG_NXTHDR(message, header);
            }
        }
        beside.is_cut =
            message.msg_flags & libc::MSG_CTRUNC != 0 || beside.descriptors.len() > most;
        if beside.is_cut {
            beside.descriptors = Vec::new();
        }
        beside
    }

    /// The name of the sender of the message that has come.
    pub(crate) fn sender(&self) -> Option<UnixAddress> {
        let len = (self.message.msg_namelen as usize).min(size_of_val(&self.name));
        // SAFETY: the name fits the storage, and the kernel has told how much of it is the address.
        let told = unsafe {
            SockAddr::try_init(|storage, told| {
                storage.cast::<libc::sockaddr_un>().write(self.name);
                *told = len as libc::socklen_t;
                Ok(())
            })
        };
        told.ok().and_then(|((), address)| named(address).ok())
    }
}
