//! The library's tests, one module for each area. Programs of their own are those that bring an allocator, and
//! those that an address sanitizer builds.

#[path = "../refusals/mod.rs"]
mod refusals;
#[path = "../traffic/mod.rs"]
mod traffic;

mod buffer_pool;
mod connections;
mod crowd;
mod deadlines;
mod descriptor;
mod dummy;
mod early_return;
mod files;
mod fork;
#[cfg(feature = "bytes")]
mod io_buf;
#[cfg(feature = "getbuf")]
mod kernel_buffers;
#[cfg(feature = "bytes")]
mod lent_bytes;
mod memlock;
mod no_ring;
mod options;
mod order;
mod other_programs;
mod overflow;
mod own_loop;
mod peers;
mod raw;
mod receive;
mod receive_into;
mod registration;
mod reluctant;
mod routes;
mod rx_queue;
mod segments;
mod send;
#[cfg(feature = "bytes")]
mod send_spans;
mod sq_poll;
mod stages;
mod time_outs;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tokio")]
mod tokio_runtime;
mod unix;
mod veth;
mod wakers;
