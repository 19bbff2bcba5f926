//! What the C library copies, counted if asked for.

use handoff_meter::Options;

use crate::counting::{PIECE, SIZE, assert_near, attach_with, myself};

#[test]
fn what_the_c_library_copies_is_counted_if_asked_for() {
    let copy = || {
        let (from, mut to) = (vec![7_u8; PIECE], vec![0; PIECE]);
        for _ in 0..SIZE / PIECE {
            std::hint::black_box(to.as_mut_slice()).copy_from_slice(std::hint::black_box(&from));
        }
    };
    let counting = match attach_with(Options { scope: myself(), paths: false, libc: true }) {
        Ok(counting) => counting,
        Err(reason) => handoff_testbed::skip!("{reason}"),
    };
    let spent = counting.during(copy);
    assert_near("by the library", spent.libc_bytes.expect("asked for"), SIZE);
    assert_near("by the kernel", spent.copied_bytes, 0);
}
