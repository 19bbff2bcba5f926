//! HTTP/1.1 for axum and tower services, on Handoff's driver: what answers lend leaves without being copied.
//!
//! [`Server::serve`] gives each request to a service and sends what it answers. A body is sent by what it is:
//!
//! | body | how it goes |
//! |---|---|
//! | [`LentBody`] of a [`Frozen`](handoff::Frozen) buffer, from 16 KiB on | lent, registered or not |
//! | [`LentBody`] of a range of a file, from 64 KiB on | from the page cache's pages (get-buf or splice) |
//! | frames of [`Bytes`](bytes::Bytes), from 16 KiB on, as axum's `Body` has them | lent as they are |
//! | everything smaller | copied, several pieces together with the head |
//!
//! Where the kernel reports that it copies what is lent (loopback does), sends copy at once, which costs less.
//! [`Server::served`] tells how many bytes were copied.
//!
//! [`Limits`] has what clients may have, and the statuses that tell them so. What is not there: HTTP/2, TLS, upgrades
//! (`CONNECT` is answered 501), and ranges or compression, which are the service's part.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod common;
mod connection;
mod cut;
mod date;
mod exchange;
mod idle;
mod input;
mod lent_body;
mod limits;
mod output;
mod request_body;
mod room;
mod served;
mod server;
mod stops;
pub mod wire;

pub use connection::Peer;
pub use lent_body::LentBody;
pub use limits::Limits;
pub use request_body::{BodyError, RequestBody};
pub use served::Served;
pub use server::Server;
