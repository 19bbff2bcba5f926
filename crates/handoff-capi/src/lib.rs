//! The C interface of `handoff`: what `include/handoff.h` declares.
//!
//! Contracts:
//! - No panic crosses into C: each function catches it and returns `-ENOTRECOVERABLE` (`boundary`).
//! - What C holds are numbers, not pointers. A number that was closed, was never given, names something of
//!   another kind, or belongs to another thread is refused with `-EBADF` and a text that says which
//!   (`handles`).
//! - A buffer is one number for life. While it is on loan, calls that would read, write, lend or split it are
//!   refused with `-EBUSY`. What C does through a pointer that it kept is its own affair; the header says so.
//! - Everything belongs to the thread that made it, and goes with it. A child of fork(2) has none of it: handles are
//!   refused there, and what goes there leaves alone what both processes share.

#![allow(non_camel_case_types)]

mod boundary;
mod driver;
mod event;
mod file;
mod file_call;
mod group;
mod handles;
mod lane;
mod listen;
mod loan;
mod memory;
mod operation;
mod probe;
mod receive;
mod route;
mod socket;
mod socket_options;
mod unix;

pub use boundary::{handoff_error_text, handoff_version};
pub use driver::{
    HANDOFF_RING_AVOID, HANDOFF_RING_PREFER, HANDOFF_RING_REQUIRE, handoff_driver_fd,
    handoff_driver_in_flight, handoff_driver_loans, handoff_driver_new, handoff_driver_options,
    handoff_driver_ring_calls, handoff_driver_ring_fd, handoff_driver_sq_poll, handoff_loan_stats,
    handoff_turn,
};
pub use event::{
    HANDOFF_ENGINE_AUTO, HANDOFF_ENGINE_COPY, HANDOFF_ENGINE_GET_BUF, HANDOFF_ENGINE_KERNEL_TLS,
    HANDOFF_ENGINE_MEMORY, HANDOFF_ENGINE_MSG_ZEROCOPY, HANDOFF_ENGINE_NONE, HANDOFF_ENGINE_SPLICE,
    HANDOFF_ENGINE_URING_ZC, HANDOFF_ENGINE_USER_TLS, HANDOFF_EVENT_ACCEPTED, HANDOFF_EVENT_CALLED,
    HANDOFF_EVENT_CARRIED, HANDOFF_EVENT_CONNECTED, HANDOFF_EVENT_ENDED, HANDOFF_EVENT_OPENED,
    HANDOFF_EVENT_RECEIVED, HANDOFF_EVENT_RETURNED, HANDOFF_EVENT_SENT, HANDOFF_EVENT_TRANSFERRED,
    HANDOFF_OUTCOME_CIPHERED, HANDOFF_OUTCOME_COPIED, HANDOFF_OUTCOME_MIXED,
    HANDOFF_OUTCOME_UNKNOWN, HANDOFF_OUTCOME_ZERO_COPY, handoff_event, handoff_outcome,
    handoff_tally,
};
pub use file::{
    handoff_file_new, handoff_read, handoff_read_with, handoff_write, handoff_write_with,
};
pub use file_call::{
    HANDOFF_ALLOCATE_GROW, HANDOFF_ALLOCATE_KEEP_SIZE, HANDOFF_ALLOCATE_PUNCH_HOLE,
    HANDOFF_ALLOCATE_ZERO, HANDOFF_ALLOCATE_ZERO_KEEP_SIZE, HANDOFF_OPEN_BENEATH,
    HANDOFF_RENAME_EXCHANGE, HANDOFF_RENAME_NO_REPLACE, HANDOFF_RENAME_REPLACE, HANDOFF_SYNC_DATA,
    HANDOFF_WRITE_BACK_BEGIN, HANDOFF_WRITE_BACK_FINISH, handoff_advise, handoff_allocate,
    handoff_link, handoff_metadata, handoff_mkdir, handoff_open, handoff_rename, handoff_stat,
    handoff_stat_at, handoff_sync, handoff_take_metadata, handoff_truncate, handoff_unlink,
    handoff_write_back,
};
pub use group::{handoff_group_flush, handoff_group_new};
pub use handles::{
    handoff_buffer, handoff_close, handoff_directory, handoff_driver, handoff_file, handoff_frozen,
    handoff_group, handoff_handle, handoff_lane, handoff_listener, handoff_operation, handoff_pool,
    handoff_receiver, handoff_region, handoff_socket, handoff_span,
};
pub use lane::{handoff_lane_length, handoff_lane_new, handoff_lane_push, handoff_lane_take};
pub use listen::handoff_listen;
pub use memory::{
    HANDOFF_PAGES_BASE, HANDOFF_PAGES_HUGE, handoff_buffer_data, handoff_buffer_new,
    handoff_buffer_set_length, handoff_buffer_split, handoff_freeze, handoff_frozen_data,
    handoff_frozen_part, handoff_region_new, handoff_register, handoff_unfreeze,
    handoff_unregister,
};
pub use operation::handoff_cancel;
pub use probe::{HANDOFF_NO, HANDOFF_UNKNOWN, HANDOFF_YES, handoff_capability, handoff_probe};
pub use receive::{
    HANDOFF_DATAGRAM_HEAD, HANDOFF_RECEIVE_ALL, handoff_pool_new, handoff_pool_with_senders,
    handoff_receive, handoff_receive_in_bulk, handoff_receive_into, handoff_rx_queue_new,
    handoff_rx_queue_take, handoff_span_data, handoff_span_sender, handoff_visit,
    handoff_window_new,
};
pub use route::{handoff_route, handoff_route_options};
pub use socket::{
    HANDOFF_MAX_HEADER, HANDOFF_SEND_MORE, HANDOFF_SEND_TELL_SENT, handoff_abort, handoff_connect,
    handoff_send, handoff_send_options, handoff_socket_fd, handoff_socket_new,
    handoff_socket_set_engine,
};
pub use socket_options::{
    HANDOFF_DEVICE_NAME, HANDOFF_OPTION_BACKLOG, HANDOFF_OPTION_BIND, HANDOFF_OPTION_BUSY_POLL,
    HANDOFF_OPTION_DEVICE, HANDOFF_OPTION_KEEPALIVE, HANDOFF_OPTION_KEEPALIVE_COUNT,
    HANDOFF_OPTION_KEEPALIVE_IDLE, HANDOFF_OPTION_KEEPALIVE_INTERVAL, HANDOFF_OPTION_LINGER,
    HANDOFF_OPTION_MARK, HANDOFF_OPTION_NODELAY, HANDOFF_OPTION_PRIORITY,
    HANDOFF_OPTION_RECEIVE_BUFFER, HANDOFF_OPTION_REUSE_PORT, HANDOFF_OPTION_SEND_BUFFER,
    HANDOFF_OPTION_USER_TIMEOUT, handoff_connect_with, handoff_listen_at,
    handoff_socket_get_options, handoff_socket_options, handoff_socket_set_options,
};
pub use unix::{handoff_listen_unix, handoff_receive_message, handoff_take_descriptors};
