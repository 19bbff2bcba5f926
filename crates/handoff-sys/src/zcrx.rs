//! Zero-copy receive: binding an rx queue to a ring, its refill queue, its statistics.
//!
//! Kernel interface: `include/uapi/linux/io_uring/zcrx.h` (Linux 6.15; events, statistics, binding without
//! a device and sharing between rings are new in 7.2, further areas in 7.3; all but the latter were tried
//! on 7.2). Members that a kernel does not know yet must be zero.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::region::Description;

const IORING_REGISTER_ZCRX_IFQ: libc::c_uint = 32;
const IORING_REGISTER_ZCRX_CTRL: libc::c_uint = 36;
const ZCRX_CTRL_FLUSH_RQ: u32 = 0;
const ZCRX_CTRL_EXPORT: u32 = 1;
const ZCRX_CTRL_ARM_EVENT: u32 = 2;
const ZCRX_CTRL_ADD_AREA: u32 = 3;
const ZCRX_REG_IMPORT: u32 = 1;

/// The number of control operations of a kernel that adds areas ([`add_area`]).
pub const CTRL_OPCODES_WITH_ADD_AREA: u32 = ZCRX_CTRL_ADD_AREA + 1;

/// `ZCRX_EVENT_ALLOC_FAIL`: a refill of the rx ring found no free chunk. The result of an event's
/// completion.
pub const EVENT_ALLOC_FAIL: u32 = 0;
/// `ZCRX_EVENT_DESC_FLAG_STATS`: the kernel counts copies at `stats_offset`.
pub const EVENT_DESC_FLAG_STATS: u32 = 1;
/// `IORING_ZCRX_AREA_SHIFT`: the bit at which the area's number begins in a place.
pub const AREA_SHIFT: u32 = 48;
/// `IORING_ZCRX_AREA_DMABUF`: the area is a dma-buf.
pub const AREA_DMABUF: u32 = 1;
/// The most entries of a refill queue.
pub const MAX_REFILL_ENTRIES: u32 = 1 << 15;

/// `struct io_uring_zcrx_rqe`: a span given back.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refill {
    /// Where it began, the area's token included.
    pub off: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct io_uring_zcrx_offsets`: where the kernel has put the parts of the refill queue in its memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Offsets {
    /// The kernel's counter of entries taken.
    pub head: u32,
    /// Our counter of entries put.
    pub tail: u32,
    /// The entries.
    pub rqes: u32,
    /// Zero.
    pub reserved: [u32; 5],
}

/// `struct io_uring_zcrx_area_reg`: the memory that the NIC writes to.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Area {
    /// Address, on a page's boundary; 0 for a dma-buf.
    pub addr: u64,
    /// Bytes, whole pages.
    pub len: u64,
    /// Filled in: the token to set in the places given back.
    pub rq_area_token: u64,
    /// Zero: memory of this process; or [`AREA_DMABUF`].
    pub flags: u32,
    /// Of a dma-buf its descriptor, else zero.
    pub dmabuf_fd: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// `struct zcrx_event_desc`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Events {
    /// User data of the completions that report events.
    pub user_data: u64,
    /// Events wanted, a bit each.
    pub type_mask: u32,
    /// [`EVENT_DESC_FLAG_STATS`].
    pub flags: u32,
    /// Where the kernel counts copies in the refill queue's memory: a u64 of spans, a u64 of bytes.
    pub stats_offset: u64,
    /// Zero.
    pub reserved: [u64; 9],
}

/// `struct io_uring_zcrx_ifq_reg`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Binding {
    /// Index of the interface in this network namespace.
    pub if_idx: u32,
    /// Its rx queue.
    pub if_rxq: u32,
    /// Entries of the refill queue, a power of two; filled in.
    pub rq_entries: u32,
    /// `ZCRX_REG_*`.
    pub flags: u32,
    /// Set by [`bind`], and so is the next.
    pub area_ptr: u64,
    /// See above.
    pub region_ptr: u64,
    /// Filled in.
    pub offsets: Offsets,
    /// Filled in: the id for requests.
    pub zcrx_id: u32,
    /// Bytes of a chunk, 0 for a page; filled in if the kernel knows the member.
    pub rx_buf_len: u32,
    /// Set by [`bind`].
    pub event_desc: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// `struct zcrx_ctrl`.
#[repr(C)]
#[derive(Default)]
struct Control {
    zcrx_id: u32,
    op: u32,
    reserved: [u64; 2],
    argument: Argument,
}

/// What the operation takes: each of them has the length of the union.
#[repr(C)]
union Argument {
    nothing: [u64; 6],
    /// `struct zcrx_ctrl_export`: a descriptor, filled in; `struct zcrx_ctrl_arm_event`: the event's type.
    number: [u32; 12],
    /// `struct zcrx_ctrl_add_area`: the address of an [`Area`].
    area: [u64; 6],
}

impl Default for Argument {
    fn default() -> Self {
        Self { nothing: [0; 6] }
    }
}

const _: () = assert!(size_of::<Refill>() == 16);
const _: () = assert!(size_of::<Offsets>() == 32);
const _: () = assert!(size_of::<Area>() == 48);
const _: () = assert!(size_of::<Events>() == 96);
const _: () = assert!(size_of::<Binding>() == 96);
const _: () = assert!(std::mem::offset_of!(Binding, zcrx_id) == 64);
const _: () = assert!(std::mem::offset_of!(Binding, event_desc) == 72);
const _: () = assert!(size_of::<Control>() == 72);

/// Bytes that the refill queue needs for its head, tail and entries, on any kernel.
pub fn refill_size(entries: u32) -> usize {
    // The kernel puts the entries on the first cache line behind head and tail.
    256 + entries as usize * size_of::<Refill>()
}

/// Binds an rx queue to a ring.
///
/// # Errors
///
/// `EPERM` without CAP_NET_ADMIN; `EINVAL` if header/data split is off, or the ring has no completions
/// of 32 bytes; `EEXIST` if the queue is bound; `ERANGE` if the area's pieces are smaller than a chunk,
/// or the queue does not exist; `EOPNOTSUPP` if the driver cannot do it; `ENODEV` without such an
/// interface; `ENOMEM` above RLIMIT_MEMLOCK.
///
/// # Safety
///
/// The kernel and the NIC write to the area, and the kernel to the refill queue's memory, until the ring
/// is closed: apart from them, only spans from completions may use the area.
pub unsafe fn bind(
    ring: RawFd,
    binding: &mut Binding,
    area: &mut Area,
    refill: (*mut u8, usize),
    events: Option<&Events>,
) -> io::Result<()> {
    let mut region = Description::user(refill.0, refill.1);
    binding.area_ptr = std::ptr::from_mut(area) as u64;
    binding.region_ptr = std::ptr::from_mut(&mut region) as u64;
    binding.event_desc = events.map_or(0, |events| std::ptr::from_ref(events) as u64);
    // SAFETY: all structures outlive the call; the memory is as the caller says.
    unsafe { register(ring, IORING_REGISTER_ZCRX_IFQ, binding, 1) }
}

/// Makes the kernel take everything from the refill queue now (`ZCRX_CTRL_FLUSH_RQ`).
///
/// # Errors
///
/// `EINVAL` if the kernel lacks this control.
pub fn flush_refill(ring: RawFd, zcrx_id: u32) -> io::Result<()> {
    let mut control = Control { zcrx_id, op: ZCRX_CTRL_FLUSH_RQ, ..Control::default() };
    // SAFETY: the kernel reads the structure, and entries that say where spans began.
    unsafe { register(ring, IORING_REGISTER_ZCRX_CTRL, &mut control, 0) }
}

/// Lets an event that was reported be reported again (`ZCRX_CTRL_ARM_EVENT`).
///
/// # Errors
///
/// `EINVAL` if it was not reported since.
pub fn arm_event(ring: RawFd, zcrx_id: u32, event_type: u32) -> io::Result<()> {
    let mut number = [0; 12];
    number[0] = event_type;
    let argument = Argument { number };
    let mut control = Control { zcrx_id, op: ZCRX_CTRL_ARM_EVENT, argument, ..Control::default() };
    // SAFETY: the kernel only reads the structure.
    unsafe { register(ring, IORING_REGISTER_ZCRX_CTRL, &mut control, 0) }
}

/// Gives the NIC further memory, of chunks of the same length (`ZCRX_CTRL_ADD_AREA`, Linux 7.3). Its number
/// follows that of the last area. No area is taken away before the last ring of the queue is closed.
///
/// # Errors
///
/// `EOPNOTSUPP` if the kernel lacks this control; `EINVAL` beyond 1,024 areas; `ERANGE` if the area's pieces
/// are smaller than a chunk; `EFAULT` if the interface is gone; `ENOMEM` above RLIMIT_MEMLOCK.
///
/// # Safety
///
/// As for the area of [`bind`].
pub unsafe fn add_area(ring: RawFd, zcrx_id: u32, area: &mut Area) -> io::Result<()> {
    let mut words = [0; 6];
    words[0] = std::ptr::from_mut(area) as u64;
    let argument = Argument { area: words };
    let mut control = Control { zcrx_id, op: ZCRX_CTRL_ADD_AREA, argument, ..Control::default() };
    // SAFETY: both structures outlive the call; the memory is as the caller says.
    unsafe { register(ring, IORING_REGISTER_ZCRX_CTRL, &mut control, 0) }
}

/// A descriptor by which other rings can have the queue, too (`ZCRX_CTRL_EXPORT`). It keeps the queue
/// bound.
///
/// # Errors
///
/// `EOPNOTSUPP` or `EINVAL` if the kernel lacks this control; when no descriptors are left.
pub fn export(ring: RawFd, zcrx_id: u32) -> io::Result<OwnedFd> {
    let mut control = Control { zcrx_id, op: ZCRX_CTRL_EXPORT, ..Control::default() };
    // SAFETY: the structure is the kernel's to fill in for the whole call.
    unsafe { register(ring, IORING_REGISTER_ZCRX_CTRL, &mut control, 0) }?;
    // SAFETY: every bit pattern of the union is valid in each of its members; the kernel has put a descriptor
    // there that is open and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(control.argument.number[0] as RawFd) })
}

/// Makes a ring receive from the queue of an [`export`]ed descriptor as well (`ZCRX_REG_IMPORT`); returns the
/// id for its requests. The queue's refill queue and areas serve all of its rings.
///
/// # Errors
///
/// `EPERM` without CAP_NET_ADMIN; `EBADF` if the descriptor is something else; `EINVAL` if the kernel lacks
/// this, or the ring has no completions of 32 bytes.
pub fn import(ring: RawFd, exported: RawFd) -> io::Result<u32> {
    let mut binding =
        Binding { if_idx: exported as u32, flags: ZCRX_REG_IMPORT, ..Binding::default() };
    // SAFETY: the structure outlives the call, and names no memory.
    unsafe { register(ring, IORING_REGISTER_ZCRX_IFQ, &mut binding, 1) }?;
    Ok(binding.zcrx_id)
}

/// # Safety
///
/// `argument` must be what `opcode` takes.
unsafe fn register<T>(
    ring: RawFd,
    opcode: libc::c_uint,
    argument: &mut T,
    count: libc::c_uint,
) -> io::Result<()> {
    // SAFETY: the caller's duty; the structure is live and writable for the whole call.
    let done = unsafe {
        let argument = std::ptr::from_mut(argument);
        libc::syscall(libc::SYS_io_uring_register, ring, opcode, argument, count)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
