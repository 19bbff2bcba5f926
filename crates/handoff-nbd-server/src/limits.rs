//! How much, and how long, clients may take.

use std::time::Duration;

/// The limits of a [`Server`](crate::Server), which is that of one thread.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; more wait in the kernel. Default 1,024.
    pub connections: usize,
    /// Connections of one client at once, by its address or its user; further ones are closed. Default: no limit of its
    /// own.
    pub per_client: usize,
    /// Requests of a connection that are carried out at once; more wait in the kernel. Default 16.
    pub requests: usize,
    /// Bytes of memory that requests of one connection may have at once. One request that is larger goes alone. Default
    /// 8 MiB.
    pub bytes: usize,
    /// Bytes of memory that all connections share. Default 64 MiB.
    pub memory: usize,
    /// How long a client may take for its negotiation, for the rest of a header, for the next piece of a payload (256 KiB at
    /// most), and how long it may take nothing of what is sent. Default 30 s.
    pub stall: Duration,
    /// How long requests under way have to end when the server stops. Default 10 s.
    pub grace: Duration,
    /// Whether clients may list the exports.
    pub lists: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_client: usize::MAX,
            requests: 16,
            bytes: 8 << 20,
            memory: 64 << 20,
            stall: Duration::from_secs(30),
            grace: Duration::from_secs(10),
            lists: true,
        }
    }
}
