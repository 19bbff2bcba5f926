//! Peers of streams.

use std::io::Read;
use std::net::TcpStream;
use std::thread::{self, JoinHandle};

/// Far ends of connections, and what each got until its end.
pub(crate) struct Readers(Vec<JoinHandle<Vec<u8>>>);

impl Readers {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, mut far: TcpStream) {
        self.0.push(thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all
        }));
    }

    /// What each got; the near ends are closed.
    pub(crate) fn end(self) -> Vec<Vec<u8>> {
        self.0.into_iter().map(|reader| reader.join().unwrap()).collect()
    }
}
