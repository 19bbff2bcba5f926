//! The far end of a connection to send to: a thread that takes all bytes.
//!
//! Contracts:
//!
//! 1. The thread copies nothing to user memory (MSG_TRUNC of tcp(7)).
//! 2. Dropping the handle ends the connection and the thread.

use std::{
    io,
    net::{Shutdown, TcpStream},
    os::fd::AsRawFd as _,
    ptr,
    sync::Arc,
    thread::{self, JoinHandle},
};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::arrivals::Arrivals;
use crate::processor::Waits;

/// The most bytes that a call takes.
pub(crate) const AT_ONCE: usize = 1 << 21;

/// The thread's handle.
pub(crate) struct Drain {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stream: TcpStream,
    arrivals: Arrivals,
}

/// Takes at most `most` bytes without copying them to user memory. Returns their number; 0 at the end of the
/// stream.
///
/// # Errors
///
/// The error of recv(2).
pub(crate) fn take(stream: &TcpStream, most: usize) -> io::Result<u64> {
    loop {
        // SAFETY: with MSG_TRUNC, TCP writes nothing, so no buffer is needed.
        let taken =
            unsafe { libc::recv(stream.as_raw_fd(), ptr::null_mut(), most, libc::MSG_TRUNC) };
        match u64::try_from(taken).map_err(|_| io::Error::last_os_error()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            taken => return taken,
        }
    }
}

impl Shared {
    fn serve(&self) -> String {
        loop {
            match take(&self.stream, AT_ONCE) {
                Ok(0) => return "the connection has ended".to_owned(),
                Ok(taken) => self.arrivals.add(taken),
                Err(error) => return format!("the receiver failed: {error}"),
            }
        }
    }
}

impl Drain {
    /// Starts the thread, on these processors.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub(crate) fn new(stream: TcpStream, processors: CpuSet) -> io::Result<Self> {
        let shared = Arc::new(Shared { stream, arrivals: Arrivals::default() });
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new().name("bench-drain".into()).spawn(move || {
            its.arrivals.join();
            its.arrivals.end(match sched_setaffinity(None, &processors) {
                Ok(()) => its.serve(),
                Err(errno) => format!("the receiver has no processor: {errno}"),
            });
            // A sender that sends more learns that nobody takes it.
            let _ = its.stream.shutdown(Shutdown::Both);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns when this many bytes have arrived since the beginning.
    ///
    /// # Errors
    ///
    /// If the connection ends before, nothing arrives for too long, or more has arrived, in one line.
    pub(crate) fn await_total(&self, bytes: u64) -> Result<(), String> {
        self.shared.arrivals.await_total(bytes)
    }

    /// How long the thread has run, and how long it was kept waiting so far.
    pub(crate) fn waits(&self) -> Waits {
        self.shared.arrivals.waits()
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        // The peer may have ended the connection first.
        let _ = self.shared.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // The thread's panic was reported on stderr.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpListener};

    use rustix::thread::sched_getaffinity;

    use super::*;

    fn connected() -> (TcpStream, Drain) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (near, Drain::new(far, sched_getaffinity(None).unwrap()).unwrap())
    }

    #[test]
    fn all_that_is_sent_is_taken_and_counted() {
        let (mut near, drain) = connected();
        let mut sent = 0;
        for bytes in [1, 3_000_000, 65_536] {
            near.write_all(&vec![7; bytes]).unwrap();
            sent += bytes as u64;
            drain.await_total(sent).unwrap();
        }
        assert!(drain.await_total(1).unwrap_err().contains("more than"));
    }

    #[test]
    fn an_end_before_the_last_byte_is_told() {
        let (mut near, drain) = connected();
        near.write_all(&[7; 10]).unwrap();
        drop(near);
        let ended = drain.await_total(11).unwrap_err();
        assert!(ended.ends_with("after 10 of 11 bytes"), "{ended}");
    }

    #[test]
    fn dropping_it_ends_the_connection() {
        let (near, drain) = connected();
        drop(drain);
        assert_eq!(io::Read::read(&mut &near, &mut [0]).unwrap_or(0), 0);
    }
}
