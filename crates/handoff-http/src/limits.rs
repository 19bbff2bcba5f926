//! How much, and how long, a client may take.

use std::time::Duration;

/// The limits of a server for its clients.
///
/// ```
/// use handoff_http::Limits;
///
/// let uploads = Limits { body: 1 << 30, ..Limits::default() };
/// assert_eq!(uploads.fields, 100);
/// ```
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's head, and of the trailers behind its body: 431 for a longer one. Default 32 KiB.
    pub head: usize,
    /// Bytes of a request's target: 414 for a longer one. Default 8 KiB.
    pub target: usize,
    /// Fields of a head, or of trailers: 431 for more. Default 100.
    pub fields: usize,
    /// Bytes of a request's body: 413 for a longer one. Default 16 MiB.
    pub body: u64,
    /// Connections at once: at least one, at most half as many as the driver's operations. When there are as many, the
    /// one that has waited longest for a request, and for at least a second, is ended for the next. More wait in the kernel,
    /// as many as the listener's backlog has room for (128 for one of the standard library). Default 1,024.
    pub connections: usize,
    /// Connections of one client address at once; further ones are closed at once. Default: no limit of its
    /// own.
    pub per_client: usize,
    /// How long a connection may wait for its first request or its next. Default 60 s.
    pub idle: Duration,
    /// How long a head may take from its first byte to its last: 408 after that. Default 10 s.
    pub head_time: Duration,
    /// How long the next bytes of a body may take while the service waits for them: 408 after that. There is no
    /// minimum rate: a service that reads a body to its end must limit the whole itself. The rest of a body
    /// that the service has not read may take this long in all. Default 30 s.
    pub body_time: Duration,
    /// How long the client may take for the next 256 KiB of an answer; after that it is disconnected. For a spliced
    /// file a single byte is enough, and it may take twice this time to notice that none was taken. The kernel, too, ends
    /// a connection whose client takes nothing for this long (`TCP_USER_TIMEOUT`). Default 30 s.
    pub stall: Duration,
    /// How long requests under way have to end when the server stops. Default 10 s.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: 32 << 10,
            target: 8 << 10,
            fields: 100,
            body: 16 << 20,
            connections: 1024,
            per_client: usize::MAX,
            idle: Duration::from_secs(60),
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}
