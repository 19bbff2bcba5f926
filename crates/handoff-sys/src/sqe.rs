//! Fields of a submission entry for which the `io-uring` crate has no setter.
//!
//! Kernel interface: `struct io_uring_sqe` in `include/uapi/linux/io_uring.h`.

use io_uring::squeue::Entry;

/// `IORING_RECVSEND_POLL_FIRST` (Linux 5.19): wait for readiness before the first attempt.
pub const RECVSEND_POLL_FIRST: u16 = 1 << 0;
/// `IORING_RECVSEND_FIXED_BUF`: `buf_index` names a registered buffer.
pub const RECVSEND_FIXED_BUF: u16 = 1 << 2;
/// `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2): the notification says whether the kernel copied.
pub const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`: set in a notification's result when any byte was copied.
pub const NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;

const SQE_LEN: usize = 64;
const BUF_INDEX_OFFSET: usize = 40;

const _: () = assert!(size_of::<Entry>() == SQE_LEN);
const _: () = assert!(align_of::<Entry>() >= align_of::<u16>());

/// Names the registered buffer that a vectored request's pieces lie in (`buf_index`).
///
/// `IORING_OP_SENDMSG_ZC` takes it since Linux 6.15, together with [`RECVSEND_FIXED_BUF`].
pub fn set_buf_index(entry: &mut Entry, index: u16) {
    // SAFETY: `Entry` is a `repr(C)` wrapper of the kernel's 64-byte entry (size asserted above),
    // in which bytes 40 and 41 are `buf_index`; the borrow is exclusive.
    unsafe {
        std::ptr::from_mut(entry).cast::<u8>().add(BUF_INDEX_OFFSET).cast::<u16>().write(index)
    }
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    #[test]
    fn the_buffer_index_lands_where_the_crate_puts_it() {
        let with = |index| {
            opcode::SendZc::new(types::Fd(3), std::ptr::null(), 5).buf_index(Some(index)).build()
        };
        let mut entry = with(0);
        super::set_buf_index(&mut entry, 0x1234);
        assert_eq!(format!("{entry:?}"), format!("{:?}", with(0x1234)));
        let bytes = |entry: &super::Entry| {
            // SAFETY: both are 64 plain bytes, asserted in this module.
            unsafe { std::ptr::from_ref(entry).cast::<[u8; super::SQE_LEN]>().read() }
        };
        assert_eq!(bytes(&entry), bytes(&with(0x1234)));
    }
}
