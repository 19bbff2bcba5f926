//! TLS connections: what is sent arrives, by whoever ciphers, and an end that is none is told.

mod exchange;
pub(crate) mod fixture;
mod gnutls;
mod openssl;
mod pools;
mod refused;
mod routes;
#[cfg(feature = "tokio")]
mod streams;

mod guest {
    mod kernel;
    mod metered;
    mod slots;
}
