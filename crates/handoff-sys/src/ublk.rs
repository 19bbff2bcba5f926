//! ublk control commands.
//!
//! Kernel interface: `include/uapi/linux/ublk_cmd.h`; the commands are `IORING_OP_URING_CMD`
//! entries of 128 bytes on `/dev/ublk-control`.

/// `UBLK_U_CMD_GET_FEATURES` (Linux 6.5): stores the driver's `UBLK_F_*` bits at `addr`.
pub const U_CMD_GET_FEATURES: u32 = 0x8020_7513;
/// Bytes that [`U_CMD_GET_FEATURES`] stores.
pub const FEATURES_LEN: u16 = 8;

/// `UBLK_F_SUPPORT_ZERO_COPY` (Linux 6.15): request buffers can be registered with a ring.
pub const F_SUPPORT_ZERO_COPY: u64 = 1 << 0;
/// `UBLK_F_USER_COPY` (Linux 6.5): data moves by `pread` and `pwrite` on the char device.
pub const F_USER_COPY: u64 = 1 << 7;
/// `UBLK_F_AUTO_BUF_REG` (Linux 6.16): request buffers are registered before delivery.
pub const F_AUTO_BUF_REG: u64 = 1 << 11;
/// `UBLK_F_BATCH_IO` (Linux 7.0): commands are delivered and committed in batches.
pub const F_BATCH_IO: u64 = 1 << 15;

/// `struct ublksrv_ctrl_cmd`, which lies in the second half of a 128-byte submission entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlCommand {
    /// Device number, `u32::MAX` where none is meant.
    pub dev_id: u32,
    /// Queue number, `u16::MAX` where none is meant.
    pub queue_id: u16,
    /// Length in bytes of the buffer at `addr`.
    pub len: u16,
    /// Address of the buffer that the command reads or fills.
    pub addr: u64,
    /// Inline argument.
    pub data: u64,
    /// Length of the device path, for unprivileged devices.
    pub dev_path_len: u16,
    /// Must be zero.
    pub reserved: [u16; 3],
}

const _: () = assert!(size_of::<ControlCommand>() == 32);

impl ControlCommand {
    /// The command as the 80 command bytes of a 128-byte submission entry.
    pub fn to_entry_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&self.dev_id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue_id.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes[24..26].copy_from_slice(&self.dev_path_len.to_ne_bytes());
        bytes
    }
}
