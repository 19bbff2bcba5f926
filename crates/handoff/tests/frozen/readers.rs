//! Peers of streams.

use std::net::TcpStream;
use std::thread::JoinHandle;

use crate::traffic::read_all;

/// Far ends of connections, and what each got until its end.
pub(crate) struct Readers(Vec<JoinHandle<Vec<u8>>>);

impl Readers {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, far: TcpStream) {
        self.0.push(read_all(far));
    }

    /// What each got; the near ends are closed.
    pub(crate) fn end(self) -> Vec<Vec<u8>> {
        self.0.into_iter().map(|reader| reader.join().unwrap()).collect()
    }
}
