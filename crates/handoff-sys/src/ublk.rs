//! ublk: block devices whose requests user space serves.
//!
//! Kernel interface: `include/uapi/linux/ublk_cmd.h`. Control commands are `IORING_OP_URING_CMD`
//! entries of 128 bytes on `/dev/ublk-control`, those of a queue are entries of 64 bytes on the
//! device's own `/dev/ublkcN`.

/// `UBLK_U_CMD_GET_QUEUE_AFFINITY`: stores the set of processors of a queue at `addr`.
pub const U_CMD_GET_QUEUE_AFFINITY: u32 = 0x8020_7501;
/// `UBLK_U_CMD_GET_DEV_INFO`: stores a [`DeviceInfo`] at `addr`.
pub const U_CMD_GET_DEV_INFO: u32 = 0x8020_7502;
/// `UBLK_U_CMD_ADD_DEV`: makes a device from the [`DeviceInfo`] at `addr` and completes it.
pub const U_CMD_ADD_DEV: u32 = 0xc020_7504;
/// `UBLK_U_CMD_DEL_DEV`: removes a device, and returns when nobody uses it any more.
pub const U_CMD_DEL_DEV: u32 = 0xc020_7505;
/// `UBLK_U_CMD_START_DEV`: makes `/dev/ublkbN` when all queues wait for requests; `data` is the
/// server's process id.
pub const U_CMD_START_DEV: u32 = 0xc020_7506;
/// `UBLK_U_CMD_STOP_DEV`: removes `/dev/ublkbN` when its requests have been answered.
pub const U_CMD_STOP_DEV: u32 = 0xc020_7507;
/// `UBLK_U_CMD_SET_PARAMS`: takes the [`Parameters`] at `addr`.
pub const U_CMD_SET_PARAMS: u32 = 0xc020_7508;
/// `UBLK_U_CMD_START_USER_RECOVERY`: prepares a device without a server for a new one.
pub const U_CMD_START_USER_RECOVERY: u32 = 0xc020_7510;
/// `UBLK_U_CMD_END_USER_RECOVERY`: as [`U_CMD_START_DEV`], for the new server.
pub const U_CMD_END_USER_RECOVERY: u32 = 0xc020_7511;
/// `UBLK_U_CMD_DEL_DEV_ASYNC` (Linux 6.9): removes a device; its number is free when nobody uses it any
/// more.
pub const U_CMD_DEL_DEV_ASYNC: u32 = 0x8020_7514;
/// `UBLK_U_CMD_TRY_STOP_DEV` (Linux 7.0): as [`U_CMD_STOP_DEV`], unless somebody has the device open.
pub const U_CMD_TRY_STOP_DEV: u32 = 0xc020_7517;
/// `UBLK_U_CMD_GET_FEATURES` (Linux 6.5): stores the driver's `UBLK_F_*` bits at `addr`.
pub const U_CMD_GET_FEATURES: u32 = 0x8020_7513;
/// Bytes that [`U_CMD_GET_FEATURES`] stores.
pub const FEATURES_LEN: u16 = 8;

/// `UBLK_U_IO_FETCH_REQ`: asks for the first request with a tag.
pub const U_IO_FETCH_REQ: u32 = 0xc010_7520;
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`: gives a result and asks for the tag's next request.
pub const U_IO_COMMIT_AND_FETCH_REQ: u32 = 0xc010_7521;
/// `UBLK_U_IO_PREP_IO_CMDS` (Linux 7.0): prepares tags for batched commands.
pub const U_IO_PREP_IO_CMDS: u32 = 0xc010_7525;
/// `UBLK_U_IO_COMMIT_IO_CMDS` (Linux 7.0): gives several results.
pub const U_IO_COMMIT_IO_CMDS: u32 = 0xc010_7526;
/// `UBLK_U_IO_FETCH_IO_CMDS` (Linux 7.0): delivers tags of requests, until it ends.
pub const U_IO_FETCH_IO_CMDS: u32 = 0xc010_7527;

/// `UBLK_F_SUPPORT_ZERO_COPY` (Linux 6.15): request buffers can be registered with a ring.
pub const F_SUPPORT_ZERO_COPY: u64 = 1 << 0;
/// `UBLK_F_USER_RECOVERY` (Linux 6.1): the device outlives its server.
pub const F_USER_RECOVERY: u64 = 1 << 3;
/// `UBLK_F_USER_RECOVERY_REISSUE` (Linux 6.1): requests that the server held go to the next one.
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// `UBLK_F_CMD_IOCTL_ENCODE` (Linux 6.4): commands are numbered as above.
pub const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// `UBLK_F_USER_COPY` (Linux 6.5): data moves by `pread` and `pwrite` on the char device.
pub const F_USER_COPY: u64 = 1 << 7;
/// `UBLK_F_AUTO_BUF_REG` (Linux 6.16): request buffers are registered before delivery.
pub const F_AUTO_BUF_REG: u64 = 1 << 11;
/// `UBLK_F_BATCH_IO` (Linux 7.0): commands are delivered and committed in batches.
pub const F_BATCH_IO: u64 = 1 << 15;

/// `UBLK_F_SAFE_STOP_DEV` (Linux 7.0): the driver has [`U_CMD_TRY_STOP_DEV`].
pub const F_SAFE_STOP_DEV: u64 = 1 << 17;

/// `UBLK_MAX_QUEUE_DEPTH`.
pub const MAX_QUEUE_DEPTH: u16 = 4096;
/// The largest request: `UBLK_IO_BUF_BITS`.
pub const MAX_REQUEST_BYTES: u32 = 1 << 25;
/// Bytes of one description of a request (`struct ublksrv_io_desc`).
pub const DESCRIPTOR_BYTES: usize = 24;

/// `UBLK_S_DEV_LIVE`.
pub const S_DEV_LIVE: u16 = 1;
/// `UBLK_S_DEV_QUIESCED`: its server is gone, and requests wait for a new one.
pub const S_DEV_QUIESCED: u16 = 2;
/// `UBLK_S_DEV_FAIL_IO`: its server is gone, and requests fail until there is a new one.
pub const S_DEV_FAIL_IO: u16 = 3;

/// The alignment of memory for a device that does not set [`PARAM_TYPE_DMA_ALIGN`] (Linux 7.2).
pub const LEAST_DMA_ALIGN: u32 = 4;

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceInfo {
    /// Queues.
    pub nr_hw_queues: u16,
    /// Requests under way in each.
    pub queue_depth: u16,
    /// `S_DEV_*`.
    pub state: u16,
    /// Must be zero.
    pub pad0: u16,
    /// Bytes of the largest request.
    pub max_io_buf_bytes: u32,
    /// Device number; `u32::MAX` lets the driver choose.
    pub dev_id: u32,
    /// The server's process id, -1 where there is none.
    pub ublksrv_pid: i32,
    /// Must be zero.
    pub pad1: u32,
    /// `F_*`.
    pub flags: u64,
    /// The server's own; the driver keeps it.
    pub ublksrv_flags: u64,
    /// The user who made it.
    pub owner_uid: u32,
    /// That user's group.
    pub owner_gid: u32,
    /// Must be zero.
    pub reserved: [u64; 2],
}

/// `UBLK_ATTR_READ_ONLY`.
pub const ATTR_READ_ONLY: u32 = 1 << 0;
/// `UBLK_ATTR_ROTATIONAL`: neighbouring blocks are read faster than distant ones.
pub const ATTR_ROTATIONAL: u32 = 1 << 1;
/// `UBLK_ATTR_VOLATILE_CACHE`: the device wants flushes.
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
/// `UBLK_ATTR_FUA`: the device takes writes that are durable by themselves.
pub const ATTR_FUA: u32 = 1 << 3;

/// `UBLK_PARAM_TYPE_BASIC`.
pub const PARAM_TYPE_BASIC: u32 = 1 << 0;
/// `UBLK_PARAM_TYPE_DISCARD`.
pub const PARAM_TYPE_DISCARD: u32 = 1 << 1;
/// `UBLK_PARAM_TYPE_DMA_ALIGN` (Linux 6.16).
pub const PARAM_TYPE_DMA_ALIGN: u32 = 1 << 4;
/// `UBLK_PARAM_TYPE_SEGMENT` (Linux 6.15).
pub const PARAM_TYPE_SEGMENT: u32 = 1 << 5;

/// The segment boundary of the block layer's devices that set none.
pub const WIDEST_SEGMENT_BOUNDARY: u64 = u32::MAX as u64;

/// `struct ublk_params`, as far as it is used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters {
    /// Bytes of this structure.
    pub len: u32,
    /// `PARAM_TYPE_*`.
    pub types: u32,
    /// `ATTR_*`.
    pub attrs: u32,
    /// Log2 of the logical block size.
    pub logical_bs_shift: u8,
    /// Log2 of the physical block size.
    pub physical_bs_shift: u8,
    /// Log2 of the best request size.
    pub io_opt_shift: u8,
    /// Log2 of the smallest good request size.
    pub io_min_shift: u8,
    /// The largest request, in sectors of 512 bytes.
    pub max_sectors: u32,
    /// Requests are cut at multiples of this, in sectors; 0: nowhere.
    pub chunk_sectors: u32,
    /// Size of the device in sectors.
    pub dev_sectors: u64,
    /// Where the pieces of a request may not meet.
    pub virt_boundary_mask: u64,
    /// In sectors.
    pub discard_alignment: u32,
    /// In bytes.
    pub discard_granularity: u32,
    /// The largest discard.
    pub max_discard_sectors: u32,
    /// The largest request to write zeroes.
    pub max_write_zeroes_sectors: u32,
    /// Ranges of one discard.
    pub max_discard_segments: u16,
    /// Must be zero.
    pub reserved0: u16,
    /// The driver's answer.
    pub devt: [u32; 4],
    /// Not used.
    pub zoned: [u32; 8],
    /// Alignment that the addresses of a request have, less one.
    pub dma_alignment: u32,
    /// Must be zero.
    pub pad: [u32; 2],
    /// No segment crosses a multiple of this and one, a power of two.
    pub seg_boundary_mask: u64,
    /// Bytes of a segment, 4096 at least.
    pub max_segment_size: u32,
    /// Segments of a request.
    pub max_segments: u16,
    /// Must be zero.
    pub pad1: u16,
}

const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(std::mem::offset_of!(DeviceInfo, flags) == 24);
const _: () = assert!(std::mem::offset_of!(Parameters, dev_sectors) == 24);
const _: () = assert!(std::mem::offset_of!(Parameters, discard_alignment) == 40);
const _: () = assert!(std::mem::offset_of!(Parameters, dma_alignment) == 108);
const _: () = assert!(std::mem::offset_of!(Parameters, seg_boundary_mask) == 120);
const _: () = assert!(size_of::<Parameters>() == 136);

/// `struct ublksrv_ctrl_cmd`, which lies in the second half of a 128-byte submission entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlCommand {
    /// Device number; `u32::MAX` for none.
    pub dev_id: u32,
    /// Queue number; `u16::MAX` for none.
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

/// `UBLK_IO_OP_READ`.
pub const OP_READ: u8 = 0;
/// `UBLK_IO_OP_WRITE`.
pub const OP_WRITE: u8 = 1;
/// Bytes of a sector, in which the driver counts.
pub const SECTOR: u64 = 512;

/// `struct ublksrv_io_desc`: the driver's description of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    /// The operation, in the lowest byte, and flags.
    pub op_flags: u32,
    /// How long it is.
    pub nr_sectors: u32,
    /// Where it begins.
    pub start_sector: u64,
    /// Where its memory is, if the server provided some.
    pub addr: u64,
}

const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES);

/// `struct ublksrv_io_cmd`, the command area of an entry with one of the commands of a tag. With
/// [`F_AUTO_BUF_REG`], the entry's address is the index under which the next request's memory is
/// registered with the ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct TagCommand {
    /// Queue number.
    pub queue_id: u16,
    /// The tag.
    pub tag: u16,
    /// Bytes, or a negative error number; only for [`U_IO_COMMIT_AND_FETCH_REQ`].
    pub result: i32,
}

impl TagCommand {
    /// The command as the 16 command bytes of a 64-byte submission entry.
    pub fn to_entry_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.queue_id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes
    }
}

/// `struct ublk_batch_io`, the command area of an entry with one of the batched commands.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchCommand {
    /// Queue number.
    pub queue_id: u16,
    /// `UBLK_BATCH_F_*`; 0 for [`U_IO_FETCH_IO_CMDS`].
    pub flags: u16,
    /// Elements at the entry's address, at most the queue's depth.
    pub elements: u16,
    /// Bytes of one element: of a [`BatchElement`] without flags, or of a tag for
    /// [`U_IO_FETCH_IO_CMDS`].
    pub element_bytes: u8,
    /// Must be zero.
    pub reserved: u8,
    /// Must be zero.
    pub reserved2: u64,
}

/// `struct ublk_elem_header`: one tag of a batched command.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchElement {
    /// The request's tag.
    pub tag: u16,
    /// Where the tag's next request is registered with the ring, with [`F_AUTO_BUF_REG`].
    pub buf_index: u16,
    /// Bytes, or a negative error number; only for [`U_IO_COMMIT_IO_CMDS`].
    pub result: i32,
}

const _: () = assert!(size_of::<BatchCommand>() == 16 && size_of::<BatchElement>() == 8);

impl BatchCommand {
    /// The command as the 16 command bytes of a 64-byte submission entry.
    pub fn to_entry_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.queue_id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.elements.to_ne_bytes());
        bytes[6] = self.element_bytes;
        bytes
    }
}

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
