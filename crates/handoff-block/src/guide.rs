//! The guides of the project that are about this crate. Their links lead to pages and files of the project's sources.

#[doc = include_str!("../guides/block.md")]
pub mod block {}
