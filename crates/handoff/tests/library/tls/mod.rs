//! TLS connections: what is sent arrives, by whoever ciphers, and an end that is none is told.

mod exchange;
mod fixture;
mod openssl;
mod refused;

mod guest {
    mod kernel;
}
