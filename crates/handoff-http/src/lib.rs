//! HTTP/1.1 for axum and tower services, on Handoff's driver: lent bodies leave without a copy.
//!
//! [`Server::serve`] gives each request to a service and sends its answer. The kind of a body decides how
//! it is sent:
//!
//! | body | how it goes |
//! |---|---|
//! | [`LentBody`] of a [`Frozen`](handoff::Frozen) buffer, from 16 KiB on | lent, registered or not |
//! | [`LentBody`] of a range of a file, from 64 KiB on | from the page cache's pages (get-buf or splice) |
//! | frames of [`Bytes`](bytes::Bytes), from 16 KiB on, as axum's `Body` has them | lent as they are |
//! | everything smaller | copied, several pieces together with the head |
//!
//! Where the kernel reports that it copies lent bytes (loopback does), sends copy at once, which costs less.
//! [`Server::served`] says how many bytes were copied.
//!
//! [`Limits`] says what clients may do, and which status they get beyond it. Missing are HTTP/2, TLS, upgrades
//! (`CONNECT` is answered 501), and ranges or compression, which are the service's part.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod answered;
mod common;
mod connection;
mod cut;
mod date;
mod exchange;
mod field_name;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
#[cfg(feature = "tls")]
mod https;
mod idle;
mod input;
mod lent_body;
mod limits;
mod output;
mod registry;
mod request_body;
mod room;
mod served;
mod server;
mod stops;
mod who;
pub mod wire;

pub use answered::Answered;
pub use connection::Peer;
pub use lent_body::LentBody;
pub use limits::Limits;
pub use request_body::{BodyError, RequestBody};
pub use served::Served;
pub use server::Server;
