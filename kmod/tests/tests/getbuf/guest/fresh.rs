use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use handoff_testbed::helpers::bytes_at;
use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use crate::device::{Lending, TARGET, connection, in_memory, write};

/// `IORING_RECVSEND_FIXED_BUF`.
const FIXED_BUFFER: u16 = 1 << 2;

fn receive(slot: u16, socket: &TcpStream, at: usize, bytes: u32) -> squeue::Entry {
    opcode::Recv::new(Fd(socket.as_raw_fd()), at as *mut u8, bytes)
        .ioprio(FIXED_BUFFER)
        .buf_group(slot)
        .build()
}

#[test]
fn what_was_received_is_sent_and_written() {
    const BYTES: usize = 150_000;
    let mut lending = Lending::new();
    let (mut from, to) = connection();
    let (out, mut far) = connection();
    let target = lending.device.bind(&out, TARGET).expect("binds");
    assert_eq!(lending.run(lending.fresh(1, 2, BYTES as u32)), BYTES as i32);
    let sender = std::thread::spawn(move || {
        from.write_all(&bytes_at(0, BYTES)).expect("sends");
    });
    let mut received = 0;
    while received < BYTES {
        let result = lending.run(receive(1, &to, received, (BYTES - received) as u32));
        assert!(result > 0, "{result}");
        received += result as usize;
    }
    sender.join().expect("ends");

    let file = in_memory();
    assert_eq!(lending.write(2, &file, BYTES as u32), BYTES as i32);
    let mut content = vec![0; BYTES];
    file.read_exact_at(&mut content, 0).expect("reads");
    assert!(content == bytes_at(0, BYTES), "what was written differs");

    let reader = std::thread::spawn(move || {
        let mut arrived = vec![0; BYTES];
        far.read_exact(&mut arrived).expect("receives");
        arrived
    });
    let mut sent = 0;
    while sent < BYTES {
        let rest = (BYTES - sent) as u32;
        let result = lending.run(lending.send(2, target, sent as u64, rest, 0));
        assert!(result > 0, "{result}");
        sent += result as usize;
    }
    assert!(reader.join().expect("ends") == bytes_at(0, BYTES), "what was sent differs");

    assert_eq!(lending.run(lending.put(1)), 0);
    assert_eq!(lending.device.query().returned, 0, "the other slot has it still");
    assert_eq!(lending.run(lending.put(2)), 0);
    let query = lending.until_all_are_back();
    assert_eq!((query.fresh, query.bytes), (1, 0));
}

#[test]
fn a_read_past_the_page_cache_fills_them() {
    let mut lending = Lending::new();
    let path = format!("/var/tmp/fill-{}", std::process::id());
    std::fs::write(&path, bytes_at(0, 65_536)).expect("writes");
    let source = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let source = source.expect("opens");
    let target = in_memory();
    let read = opcode::ReadFixed::new(Fd(source.as_raw_fd()), std::ptr::null_mut(), 65_536, 1);
    let results = lending.chain(&[
        lending.fresh(1, 2, 65_536),
        read.build(),
        write(2, &target, 0, 65_536, 0),
        lending.put(1),
        lending.put(2),
    ]);
    assert_eq!(results, [65_536, 65_536, 65_536, 0, 0]);
    let mut content = vec![0; 65_536];
    target.read_exact_at(&mut content, 0).expect("reads");
    assert!(content == bytes_at(0, 65_536), "content differs");
    std::fs::remove_file(&path).expect("removes");
    lending.until_all_are_back();
}

#[test]
fn each_slot_has_its_direction_and_new_pages_are_zero() {
    let mut lending = Lending::new();
    let file = in_memory();
    file.write_all_at(&[9; 100_000], 0).expect("writes");
    assert_eq!(lending.run(lending.fresh(1, 2, 100_000)), 100_000);
    assert_eq!(lending.write(1, &file, 100), -libc::EFAULT);
    let into_the_other =
        opcode::ReadFixed::new(Fd(file.as_raw_fd()), std::ptr::null_mut(), 100, 2).build();
    assert_eq!(lending.run(into_the_other), -libc::EFAULT);
    assert_eq!(lending.write(2, &file, 100_000), 100_000);
    let mut content = vec![1; 100_000];
    file.read_exact_at(&mut content, 0).expect("reads");
    assert!(content.iter().all(|&byte| byte == 0));
}

#[test]
fn if_one_slot_is_taken_neither_is_filled() {
    let mut lending = Lending::new();
    assert_eq!(lending.run(lending.fresh(1, 2, 4_096)), 4_096);
    assert_eq!(lending.run(lending.fresh(3, 2, 4_096)), -libc::EBUSY);
    assert_eq!(lending.run(lending.fresh(1, 4, 4_096)), -libc::EBUSY);
    assert_eq!(lending.run(lending.fresh(3, 3, 4_096)), -libc::EBUSY);
    assert_eq!(lending.run(lending.fresh(3, 60_000, 4_096)), -libc::EINVAL);
    for slot in [3, 4] {
        assert_eq!(lending.run(lending.put(slot)), -libc::EINVAL, "slot {slot}");
    }
    assert_eq!(lending.device.query().lends, 1);
}
