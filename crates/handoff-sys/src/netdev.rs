//! The netdev family of generic netlink: queues of interfaces, and who serves them.
//!
//! Kernel interface: `include/uapi/linux/netdev.h`, Linux 6.8; memory providers Linux 6.15.

/// `NETDEV_FAMILY_NAME`.
pub const FAMILY: &str = "netdev";

/// `NETDEV_CMD_QUEUE_GET`.
pub const QUEUE_GET: u8 = 10;
/// `NETDEV_A_QUEUE_ID`.
pub const QUEUE_ID: u16 = 1;
/// `NETDEV_A_QUEUE_IFINDEX`.
pub const QUEUE_IFINDEX: u16 = 2;
/// `NETDEV_A_QUEUE_TYPE`: 0 receives, 1 sends.
pub const QUEUE_TYPE: u16 = 3;
/// `NETDEV_A_QUEUE_NAPI_ID`.
pub const QUEUE_NAPI_ID: u16 = 4;
/// `NETDEV_A_QUEUE_DMABUF`: there if memory of a dma-buf is bound to the queue.
pub const QUEUE_DMABUF: u16 = 5;
/// `NETDEV_A_QUEUE_IO_URING`: there if memory of an io_uring instance is.
pub const QUEUE_IO_URING: u16 = 6;
/// `NETDEV_A_QUEUE_XSK`: there if an AF_XDP socket is.
pub const QUEUE_XSK: u16 = 7;
/// `NETDEV_A_QUEUE_LEASE`: there if a virtual interface has leased the queue.
pub const QUEUE_LEASE: u16 = 8;

/// `NETDEV_CMD_QUEUE_CREATE`: gives a virtual interface one more queue, leased from a card. Linux 7.1.
pub const QUEUE_CREATE: u8 = 16;
/// `NETDEV_A_LEASE_IFINDEX`: the card.
pub const LEASE_IFINDEX: u16 = 1;
/// `NETDEV_A_LEASE_QUEUE`: its queue, with `QUEUE_ID` and `QUEUE_TYPE`.
pub const LEASE_QUEUE: u16 = 2;
/// `NETDEV_A_LEASE_NETNS_ID`: the card's namespace, by the number that it has in the interface's.
pub const LEASE_NETNS_ID: u16 = 3;

/// `NETDEV_CMD_NAPI_GET`.
pub const NAPI_GET: u8 = 11;
/// `NETDEV_A_NAPI_IFINDEX`.
pub const NAPI_IFINDEX: u16 = 1;
/// `NETDEV_A_NAPI_ID`.
pub const NAPI_ID: u16 = 2;
/// `NETDEV_A_NAPI_IRQ`.
pub const NAPI_IRQ: u16 = 3;
/// `NETDEV_A_NAPI_PID`: of the thread, where it has one.
pub const NAPI_PID: u16 = 4;

/// `NETDEV_CMD_BIND_TX`: lets sockets send from a dma-buf over the interface. Linux 6.16.
pub const BIND_TX: u8 = 15;
/// `NETDEV_A_DMABUF_IFINDEX`.
pub const DMABUF_IFINDEX: u16 = 1;
/// `NETDEV_A_DMABUF_FD`.
pub const DMABUF_FD: u16 = 3;
/// `NETDEV_A_DMABUF_ID`: the binding's id, in the answer and with each message.
pub const DMABUF_ID: u16 = 4;
/// `SCM_DEVMEM_DMABUF`: the control message with the binding's id.
pub const SCM_DEVMEM_DMABUF: i32 = 79;
