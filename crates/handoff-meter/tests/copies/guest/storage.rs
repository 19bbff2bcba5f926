//! Files and devices.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use crate::counting::{Counting, EXT4, PIECE, SIZE, TMPFS, assert_near, counting, myself, place};
use crate::files::{file_in, filled_file_in, read_all, write_all};

/// One after the other, since attaching takes longer than any of them.
#[test]
fn files_and_devices_copy_what_they_should() {
    let counting = counting!(myself());
    writing_to_tmpfs_copies_each_byte_once(&counting);
    a_loop_of_read_and_write_copies_twice(&counting);
    memory_that_must_be_faulted_in_first_is_counted_once(&counting);
    filling_with_zeroes_is_no_copy(&counting);
    writing_through_a_ring_moves_and_copies_the_same(&counting);
}

fn writing_to_tmpfs_copies_each_byte_once(counting: &Counting) {
    let mut file = file_in(TMPFS);
    let counted = counting.during(|| write_all(&mut file));
    assert_near("copied", counted.copied_bytes, SIZE);
    assert_near("moved", counted.moved_bytes, SIZE);
    assert_eq!(counted.libc_bytes, None, "nobody has asked for it");
    let report = counting.report();
    let place = place(&report, "copy_folio_from_iter_atomic");
    assert!(place.path.iter().any(|caller| caller == "vfs_write"), "{place:?}");
    assert_near("by path", place.bytes, SIZE);
}

fn a_loop_of_read_and_write_copies_twice(counting: &Counting) {
    for directory in [TMPFS, EXT4] {
        let mut from = filled_file_in(directory);
        let mut to = file_in(directory);
        let counted = counting.during(|| {
            let mut piece = vec![7; PIECE];
            for _ in 0..SIZE / PIECE {
                from.read_exact(&mut piece).expect("read");
                to.write_all(&piece).expect("written");
            }
        });
        assert_near(directory, counted.copied_bytes, 2 * SIZE);
        assert_near(directory, counted.moved_bytes, 2 * SIZE);
    }
}

fn memory_that_must_be_faulted_in_first_is_counted_once(counting: &Counting) {
    let source = filled_file_in(TMPFS);
    let mut to = file_in(TMPFS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            SIZE,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::PRIVATE,
            &source,
            0,
        )
    }
    .expect("mapped");
    // SAFETY: mapped just now for so many bytes; nobody else has the file.
    let bytes = unsafe { std::slice::from_raw_parts(mapped.cast::<u8>(), SIZE) };
    let counted = counting.during(|| to.write_all(bytes).expect("written"));
    assert_near("copied", counted.copied_bytes, SIZE);
}

fn filling_with_zeroes_is_no_copy(counting: &Counting) {
    let mut zeroes = File::open("/dev/zero").expect("a device");
    let counted = counting.during(|| read_all(&mut zeroes));
    assert_near("copied", counted.copied_bytes, 0);
    assert_near("moved", counted.moved_bytes, SIZE);
}

fn writing_through_a_ring_moves_and_copies_the_same(counting: &Counting) {
    let file = file_in(TMPFS);
    let mut ring = IoUring::new(4).expect("a ring");
    let piece = vec![7; PIECE];
    let counted = counting.during(|| {
        for number in 0..SIZE / PIECE {
            let write = opcode::Write::new(
                types::Fd(file.as_raw_fd()),
                piece.as_ptr(),
                u32::try_from(PIECE).expect("small"),
            )
            .offset((number * PIECE) as u64)
            .build();
            // SAFETY: the buffer and the file outlive the completion that is awaited next.
            unsafe { ring.submission().push(&write) }.expect("room");
            ring.submit_and_wait(1).expect("submitted");
            let completion = ring.completion().next().expect("completed");
            assert_eq!(completion.result(), PIECE as i32);
        }
    });
    assert_near("copied", counted.copied_bytes, SIZE);
    assert_near("moved", counted.moved_bytes, SIZE);
}
