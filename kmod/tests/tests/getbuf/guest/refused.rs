use std::fs::{File, OpenOptions};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use io_uring::{IoUring, opcode, types::Fd};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::device::{
    Bind, Device, Lending, NULL, REPLACE, SOURCE, TARGET, connection, further, in_memory, on_disk,
};

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("is refused").raw_os_error().expect("by the kernel")
}

#[test]
fn files_that_cannot_be_bound() {
    let device = Device::open();
    let writable = OpenOptions::new().write(true).open("/dev/zero").expect("opens");
    assert_eq!(errno(device.bind(&writable, SOURCE)), libc::EBADF);
    let directory = File::open("/").expect("opens");
    assert_eq!(errno(device.bind(&directory, SOURCE)), libc::EINVAL);
    assert_eq!(errno(device.bind(&device.0, SOURCE)), libc::EINVAL);
    let ring = IoUring::new(1).expect("a ring");
    assert_eq!(errno(device.bind(&ring, SOURCE)), libc::EINVAL);
    let (read, _write) = io::pipe().expect("a pipe");
    let refused = errno(device.bind(&read, SOURCE));
    assert!([libc::EINVAL, libc::ESPIPE].contains(&refused), "{refused}");
    let (unix, _other) = UnixStream::pair().expect("a pair");
    assert_eq!(errno(device.bind(&unix, SOURCE)), libc::EOPNOTSUPP);
    assert_eq!(errno(device.bind(&unix, TARGET)), libc::EOPNOTSUPP);
    let udp = UdpSocket::bind("127.0.0.1:0").expect("binds");
    assert_eq!(errno(device.bind(&udp, SOURCE)), libc::EOPNOTSUPP);
    device.bind(&udp, TARGET).expect("can be sent to");
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    assert_eq!(errno(device.bind(&listener, SOURCE)), libc::EOPNOTSUPP);
    assert_eq!(errno(device.bind(&in_memory(), TARGET)), libc::ENOTSOCK);
    assert_eq!(errno(device.bind(&-1, SOURCE)), libc::EBADF);
    assert_eq!(errno(device.bind(&10_000, SOURCE)), libc::EBADF);
    assert_eq!(errno(device.unbind(77)), libc::ENOENT);
}

#[test]
fn a_socket_of_tls_is_no_source() {
    let mut lending = Lending::new();
    let (from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let name = b"tls";
    // SAFETY: the name is read during the call.
    let set = unsafe {
        let (value, bytes) = (name.as_ptr().cast(), name.len() as u32);
        libc::setsockopt(to.as_raw_fd(), libc::SOL_TCP, libc::TCP_ULP, value, bytes)
    };
    if set != 0 {
        handoff_testbed::skip!("this kernel has no TLS");
    }
    assert_eq!(errno(lending.device.bind(&to, SOURCE)), libc::EOPNOTSUPP);
    // It became one after it was bound: noticed when there is something to lend.
    drop(from);
    assert_eq!(lending.run(lending.get(1, id, 0, 10)), -libc::EOPNOTSUPP);
}

#[test]
fn what_is_reserved_is_zero() {
    let mut lending = Lending::new();
    let file = on_disk();
    let device = &lending.device;
    let bind = || Bind { fd: file.as_raw_fd(), purpose: SOURCE, ..Bind::default() };
    for mut wrong in [
        Bind { purpose: 0, ..bind() },
        Bind { purpose: 4, ..bind() },
        Bind { flags: 1, ..bind() },
        Bind { id: 1, ..bind() },
        Bind { reserved: [0, 1], ..bind() },
    ] {
        assert_eq!(errno(device.bind_raw(&mut wrong)), libc::EINVAL);
    }
    for entry in [
        lending.get_with(1, NULL, 0, 8, 2),
        lending.get_with(1, NULL, 0, 8, 1 << 7),
        lending.get(1, NULL, 0, 0),
        lending.command(crate::device::FRESH, 1, [8 | 2 << 32 | 1 << 48, 0]),
        lending.command(crate::device::FRESH, 1, [8 | 2 << 32, 1]),
        lending.fresh(1, 2, 0),
        lending.command(crate::device::PUT, 1, [1, 0]),
        lending.command(crate::device::PUT, 1, [0, 1]),
        lending.cancel(0, 2),
        lending.send(1, 0, 0, 0, 0),
        lending.send(1, 0, 0, 8, 4),
    ] {
        assert_eq!(lending.run(entry.clone()), -libc::EINVAL, "{entry:?}");
    }
    let no_slot = opcode::UringCmd16::new(Fd(lending.device.0.as_raw_fd()), crate::device::PUT);
    assert_eq!(lending.run(no_slot.build()), -libc::EINVAL);
    assert_eq!(lending.run(lending.command(0x1234, 1, [0, 0])), -libc::EOPNOTSUPP);
    assert_eq!(lending.device.query().lends, 0);
}

#[test]
fn hostile_numbers() {
    let mut lending = Lending::new();
    let file = on_disk();
    file.set_len(10_000).expect("extends");
    let id = lending.device.bind(&file, SOURCE).expect("binds");
    for offset in [u64::MAX, u64::MAX - 4_096, 1 << 63, (1 << 63) - 1, (1 << 63) - 4_096] {
        assert_eq!(lending.run(lending.get(1, id, offset, 8_192)), -libc::EINVAL, "{offset:#x}");
    }
    assert_eq!(lending.run(lending.get(1, id, (1 << 63) - 8_193, 8_192)), 0);
    assert_eq!(lending.run(lending.get(1, NULL, 1, 8)), -libc::ESPIPE);
    assert_eq!(lending.run(lending.get(1, id + 1, 0, 8)), -libc::EBADF);
    assert_eq!(lending.run(lending.get(1, 4_095, 0, 8)), -libc::EBADF);
    for slot in [128, 16_384, u16::MAX] {
        assert_eq!(lending.run(lending.get(slot, NULL, 0, 8)), -libc::EINVAL, "slot {slot}");
        assert_eq!(lending.run(lending.get(slot, id, 0, 8)), -libc::EINVAL, "slot {slot}");
        assert_eq!(lending.run(lending.put(slot)), -libc::EINVAL, "slot {slot}");
    }
    // More than any lend has: less is lent.
    assert_eq!(lending.run(lending.get(1, id, 0, u32::MAX)), 10_000);
    assert_eq!(lending.run(lending.get(1, id, 0, 8)), -libc::EBUSY);
    assert_eq!(lending.run(lending.fresh(2, 3, u32::MAX)), 4 << 20);

    let (left, _right) = connection();
    let target = lending.device.bind(&left, TARGET).expect("binds");
    assert_eq!(lending.run(lending.send(1, id, 0, 8, 0)), -libc::EBADF);
    assert_eq!(lending.run(lending.send(9, target, 0, 8, 0)), -libc::EFAULT);
    assert_eq!(lending.run(lending.send(1, target, 9_999, 2, 0)), -libc::EFAULT);
    assert_eq!(lending.run(lending.send(1, target, u64::MAX, 2, 0)), -libc::EFAULT);
    // A buffer only for filling is not sent.
    assert_eq!(lending.run(lending.send(2, target, 0, 8, 0)), -libc::EFAULT);
    let (stream, _peer) = connection();
    let stream = lending.device.bind(&stream, SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(4, stream, 1, 8)), -libc::ESPIPE);
    let further = lending.get_with(4, stream, 0, 8, further(1));
    assert_eq!(lending.run(further), -libc::ESPIPE);
    assert_eq!(lending.run(lending.send(1, stream, 0, 8, 0)), -libc::EBADF);
}

#[test]
fn a_table_without_slots_takes_nothing() {
    let mut lending = Lending::new();
    lending.ring.submitter().unregister_buffers().expect("drops the table");
    assert_eq!(lending.run(lending.get(0, NULL, 0, 8)), -libc::EINVAL);
    assert_eq!(lending.run(lending.put(0)), -libc::EINVAL);
    assert_eq!(lending.device.query().lends, 0);
}

#[test]
fn memory_of_the_user_is_not_sent() {
    let lending = Lending::new();
    let device = lending.device;
    let memory = vec![1_u8; 8_192];
    let ring = IoUring::new(4).expect("a ring");
    let buffer = libc::iovec { iov_base: memory.as_ptr() as *mut _, iov_len: memory.len() };
    // SAFETY: the ring goes before the memory does.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.expect("registers");
    let mut lending = Lending { ring, device };
    let (left, _right) = connection();
    let target = lending.device.bind(&left, TARGET).expect("binds");
    let address = memory.as_ptr() as u64;
    assert_eq!(lending.run(lending.send(0, target, address, 8_192, 0)), -libc::EOPNOTSUPP);
    // Nor does it leave the table.
    assert_eq!(lending.run(lending.put(0)), -libc::EBUSY);
    // Shared memory is treated alike: of a file, and of nobody's lending.
    let file = in_memory();
    file.set_len(8_192).expect("extends");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory at a place that the kernel chooses, which stays to the end of the process.
    let shared =
        unsafe { mmap(std::ptr::null_mut(), 8_192, protection, MapFlags::SHARED, &file, 0) };
    let shared = shared.expect("maps");
    let buffer = libc::iovec { iov_base: shared, iov_len: 8_192 };
    lending.ring.submitter().unregister_buffers().expect("drops the table");
    // SAFETY: as above.
    unsafe { lending.ring.submitter().register_buffers(&[buffer]) }.expect("registers");
    let sends = lending.send(0, target, shared as u64, 8_192, 0);
    assert_eq!(lending.run(sends), -libc::EOPNOTSUPP);
    let replaces = lending.get_with(0, NULL, 0, 8, REPLACE);
    assert_eq!(lending.run(replaces), -libc::EBUSY);
    drop(lending);
}
