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

/// `IORING_URING_CMD_MULTISHOT` (Linux 6.18): the command completes more than once.
pub const URING_CMD_MULTISHOT: u32 = 1 << 1;

const SQE_LEN: usize = 64;
const COMMAND_FLAGS_OFFSET: usize = 28;
const IOPRIO_OFFSET: usize = 2;
const DESTINATION_OFFSET: usize = 8;
const ADDRESS_OFFSET: usize = 16;
const LEN_OFFSET: usize = 24;
const BUF_INDEX_OFFSET: usize = 40;
const DESTINATION_LEN_OFFSET: usize = 44;

const _: () = assert!(size_of::<Entry>() == SQE_LEN);
const _: () = assert!(align_of::<Entry>() >= align_of::<u32>());

/// Sets the registered buffer that contains a vectored request's pieces (`buf_index`), or the group from
/// which to select buffers (`buf_group`, the same place).
///
/// `IORING_OP_SENDMSG_ZC` takes the buffer since Linux 6.15, together with [`RECVSEND_FIXED_BUF`].
#[inline]
pub fn set_buf_index(entry: &mut Entry, index: u16) {
    // SAFETY: `Entry` is a `repr(C)` wrapper of the kernel's 64-byte entry (size asserted above),
    // in which bytes 40 and 41 are `buf_index`; the borrow is exclusive.
    unsafe {
        std::ptr::from_mut(entry).cast::<u8>().add(BUF_INDEX_OFFSET).cast::<u16>().write(index)
    }
}

/// Sets the memory that a request reads or writes (`addr`, `len`). The caller who submits the entry is
/// responsible for the memory.
#[inline]
pub fn set_memory(entry: &mut Entry, start: *const u8, len: u32) {
    // SAFETY: as in `set_buf_index`; bytes 16 to 23 are the address and 24 to 27 the length.
    unsafe {
        let bytes = std::ptr::from_mut(entry).cast::<u8>();
        bytes.add(ADDRESS_OFFSET).cast::<u64>().write(start as u64);
        bytes.add(LEN_OFFSET).cast::<u32>().write(len);
    }
}

/// Makes a send find its memory in a registered buffer ([`RECVSEND_FIXED_BUF`]).
#[inline]
pub fn set_fixed_buffer(entry: &mut Entry, index: u16) {
    set_buf_index(entry, index);
    add_send_flags(entry, RECVSEND_FIXED_BUF);
}

/// Adds flags to those of a send (`ioprio`): `RECVSEND_*` and `SEND_ZC_*` of this module.
#[inline]
pub fn add_send_flags(entry: &mut Entry, flags: u16) {
    // SAFETY: as in `set_buf_index`; bytes 2 and 3 are `ioprio`, the flags of sends.
    unsafe {
        *std::ptr::from_mut(entry).cast::<u8>().add(IOPRIO_OFFSET).cast::<u16>() |= flags;
    }
}

/// Sets where a send goes to (`addr2`, `addr_len`). The caller who submits the entry is responsible for the
/// address, of `len` bytes.
#[inline]
pub fn set_destination(entry: &mut Entry, address: *const u8, len: u16) {
    // SAFETY: as in `set_buf_index`; bytes 8 to 15 are the second address and 44 and 45 its length.
    unsafe {
        let bytes = std::ptr::from_mut(entry).cast::<u8>();
        bytes.add(DESTINATION_OFFSET).cast::<u64>().write(address as u64);
        bytes.add(DESTINATION_LEN_OFFSET).cast::<u16>().write(len);
    }
}

/// Sets the flags of `IORING_OP_URING_CMD` (`uring_cmd_flags`).
pub fn set_command_flags(entry: &mut Entry, flags: u32) {
    // SAFETY: as in `set_buf_index`; bytes 28 to 31 are the operation's flags.
    unsafe {
        std::ptr::from_mut(entry).cast::<u8>().add(COMMAND_FLAGS_OFFSET).cast::<u32>().write(flags)
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

    #[test]
    fn the_memory_of_a_send_lands_where_the_crate_puts_it() {
        let memory = [0u8; 7];
        let send = |start, len| opcode::SendZc::new(types::Fd(3), start, len).zc_flags(8);
        let mut entry = send(std::ptr::null(), 0).build();
        super::set_memory(&mut entry, memory.as_ptr(), 7);
        super::set_fixed_buffer(&mut entry, 0x1234);
        let expected = send(memory.as_ptr(), 7).buf_index(Some(0x1234)).build();
        let bytes = |entry: &super::Entry| {
            // SAFETY: both are 64 plain bytes, asserted in this module.
            unsafe { std::ptr::from_ref(entry).cast::<[u8; super::SQE_LEN]>().read() }
        };
        assert_eq!(bytes(&entry), bytes(&expected));
    }

    #[test]
    fn the_destination_of_a_send_lands_where_the_crate_puts_it() {
        let address = [0u8; 16];
        let mut entry = opcode::SendZc::new(types::Fd(3), std::ptr::null(), 0).zc_flags(8).build();
        super::set_destination(&mut entry, address.as_ptr(), 16);
        super::add_send_flags(&mut entry, super::RECVSEND_POLL_FIRST);
        let expected = opcode::SendZc::new(types::Fd(3), std::ptr::null(), 0)
            .dest_addr(address.as_ptr().cast())
            .dest_addr_len(16)
            .zc_flags(8 | super::RECVSEND_POLL_FIRST)
            .build();
        let bytes = |entry: &super::Entry| {
            // SAFETY: both are 64 plain bytes, asserted in this module.
            unsafe { std::ptr::from_ref(entry).cast::<[u8; super::SQE_LEN]>().read() }
        };
        assert_eq!(bytes(&entry), bytes(&expected));
    }

    #[test]
    fn the_flags_of_a_command_land_where_the_crate_puts_them() {
        // The crate sets IORING_URING_CMD_FIXED, the lowest bit, with a buffer.
        let command = || opcode::UringCmd16::new(types::Fd(3), 7);
        let expected = command().buf_index(Some(5)).build();
        let mut entry = command().build();
        super::set_buf_index(&mut entry, 5);
        super::set_command_flags(&mut entry, 1);
        let bytes = |entry: &super::Entry| {
            // SAFETY: both are 64 plain bytes, asserted in this module.
            unsafe { std::ptr::from_ref(entry).cast::<[u8; super::SQE_LEN]>().read() }
        };
        assert_eq!(bytes(&entry), bytes(&expected));
    }
}
