//! The server over loopback: what RFC 9112 asks for, clients that are slow or hostile, services that fail.

mod answers;
mod bodies;
mod curl;
mod guest;
#[cfg(feature = "tls")]
mod https;
mod hyper;
mod lifecycle;
mod pages;
mod refused;
mod requests;
mod runtimes;
mod serving;
