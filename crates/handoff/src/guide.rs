//! The guides of the project that are about this crate. Their links lead to pages and files of the project's sources.

#[doc = include_str!("../guides/send.md")]
pub mod send {}

#[doc = include_str!("../guides/receive.md")]
pub mod receive {}

#[doc = include_str!("../guides/routes.md")]
pub mod routes {}

#[doc = include_str!("../guides/get-buf.md")]
pub mod get_buf {}

#[doc = include_str!("../guides/embedding.md")]
pub mod embedding {}

#[doc = include_str!("../guides/tokio.md")]
pub mod tokio {}
