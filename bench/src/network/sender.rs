//! The far end of a connection: a thread that sends the pattern while it is told to.
//!
//! Contracts:
//!
//! 1. The thread lends its memory (MSG_ZEROCOPY of socket(7)), so its side of the wire copies nothing.
//! 2. The thread sends something each time it is told to begin, and rests only at the end of a pattern. Whoever
//!    tells it to rest learns at once how much it will have sent, before it has sent the last of it: so nobody
//!    waits for bytes that never come.
//! 3. Dropping the handle ends the connection and the thread, even a thread that waits for room.

use std::{
    io::{self, IoSlice},
    iter,
    net::{Shutdown, TcpStream},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use handoff_sys::{
    tcp,
    zerocopy::{self, Message},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
    thread::{CpuSet, gettid, sched_setaffinity},
};

use super::{
    far::FarEnd,
    pattern::{PERIOD, Pattern},
};
use crate::processor::Waits;

/// The longest wait for lent memory before the thread looks again.
const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes of a call, which ends with the pattern: it has many frames, so that few of them are not full.
const PIECE: usize = 8 * PERIOD;
/// A number of pieces that the thread never reaches.
const NO_LIMIT: u64 = u64::MAX;

/// The thread's handle.
pub(crate) struct Sender {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// TCP's count of acknowledged bytes before the stream begins.
    base: u64,
}

struct Shared {
    stream: TcpStream,
    orders: Mutex<Orders>,
    /// Notified when there is more to send, and when the thread must end.
    changed: Condvar,
    task: Mutex<PathBuf>,
    failure: Mutex<Option<String>>,
}

#[derive(Default)]
struct Orders {
    /// The number of pieces sent, including the current one.
    begun: u64,
    /// The number of pieces after which the thread rests.
    limit: u64,
    ended: bool,
}

impl Sender {
    /// Starts the thread on these processors. It rests at first.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub(crate) fn new(
        stream: TcpStream,
        pattern: Arc<Pattern>,
        processors: CpuSet,
    ) -> io::Result<Self> {
        let base = tcp::bytes_acked(stream.as_fd())?;
        let shared = Arc::new(Shared {
            stream,
            orders: Mutex::default(),
            changed: Condvar::new(),
            task: Mutex::default(),
            failure: Mutex::default(),
        });
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new().name("bench-sender".into()).spawn(move || {
            let prepared = sched_setaffinity(None, &processors).map_err(io::Error::from);
            let task = format!("/proc/self/task/{}", gettid().as_raw_nonzero());
            *its.task.lock().unwrap_or_else(PoisonError::into_inner) = task.into();
            if let Err(error) = prepared.and_then(|()| its.serve(&pattern)) {
                let text = format!("the sender failed: {error}");
                *its.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                // The receiver learns that no more will come.
                let _ = its.stream.shutdown(Shutdown::Both);
            }
        })?;
        Ok(Self { shared, thread: Some(thread), base })
    }

    /// Makes the thread send until it is told to rest.
    pub(crate) fn begin(&self) {
        self.shared.orders().limit = NO_LIMIT;
        self.shared.changed.notify_one();
    }

    /// Makes the thread continue to the pattern's end and rest there. Returns the bytes that it will have sent
    /// then since the beginning of the stream. Call this only after [`begin`](Self::begin).
    pub(crate) fn rest(&self) -> u64 {
        let mut orders = self.shared.orders();
        orders.limit = orders.begun + 1;
        orders.limit * PIECE as u64
    }

    /// The directory of the thread in `/proc`.
    pub(crate) fn task(&self) -> PathBuf {
        self.shared.task.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the stream behind what was sent. Call this only when the thread rests and everything has arrived.
    pub(crate) fn end_stream(&self) {
        // The peer may have ended the connection.
        let _ = self.shared.stream.shutdown(Shutdown::Write);
    }
}

impl FarEnd for Sender {
    fn begin(&self) -> Result<(), String> {
        Sender::begin(self);
        Ok(())
    }

    fn rest(&self) -> Result<u64, String> {
        Ok(Sender::rest(self))
    }

    fn acknowledged(&self) -> Result<u64, String> {
        let count = tcp::bytes_acked(self.shared.stream.as_fd());
        let count = count.map_err(|error| format!("what has arrived is not known: {error}"))?;
        Ok(count - self.base)
    }

    fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn waits(&self) -> Waits {
        Waits::of([self.task()])
    }
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, pattern: &Pattern) -> io::Result<()> {
        zerocopy::enable(self.stream.as_fd())?;
        while self.next_piece() {
            self.send_piece(pattern)?;
        }
        Ok(())
    }

    /// Waits until a piece must be sent, and begins it. Returns false when the thread must end.
    fn next_piece(&self) -> bool {
        let rests = |orders: &mut Orders| !orders.ended && orders.begun >= orders.limit;
        let waited = self.changed.wait_while(self.orders(), rests);
        let mut orders = waited.unwrap_or_else(PoisonError::into_inner);
        orders.begun += 1;
        !orders.ended
    }

    fn send_piece(&self, pattern: &Pattern) -> io::Result<()> {
        let lend = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
        let mut sent = 0;
        while sent < PIECE {
            let rest = &pattern.bytes()[sent % PERIOD..];
            let whole = (PIECE - sent - rest.len()) / PERIOD;
            let pieces: Vec<IoSlice<'_>> = iter::once(rest)
                .chain(iter::repeat_n(pattern.bytes(), whole))
                .map(IoSlice::new)
                .collect();
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(&self.stream, &pieces, &mut control, lend) {
                Ok(length) => sent += length,
                Err(Errno::INTR) => {}
                // ENOBUFS: unread returns have used up their memory (net.core.optmem_max).
                Err(Errno::NOBUFS) => {
                    let mut events = [PollFd::new(&self.stream, PollFlags::ERR)];
                    poll(&mut events, Some(&BETWEEN_LOOKS))?;
                }
                Err(errno) => return Err(errno.into()),
            }
            while let Some(message) = zerocopy::read_error_queue(self.stream.as_fd())? {
                if let Message::Other(error) = message {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.orders().ended = true;
        self.shared.changed.notify_one();
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
    use std::{io::Read as _, net::TcpListener, time::Duration};

    use rustix::thread::sched_getaffinity;

    use super::{super::pattern::Stream, *};

    fn connected() -> (Sender, TcpStream, Arc<Pattern>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        near.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let pattern = Pattern::new();
        let processors = sched_getaffinity(None).unwrap();
        (Sender::new(far, Arc::clone(&pattern), processors).unwrap(), near, pattern)
    }

    #[test]
    fn all_that_was_said_arrives_and_no_more() {
        let (sender, mut near, pattern) = connected();
        let mut stream = Stream::new(pattern, true);
        let mut buffer = vec![0; 50_000];
        for enough in [3_000_000, 0, 9_000_000] {
            sender.begin();
            while stream.position() < enough {
                let length = near.read(&mut buffer).unwrap();
                stream.take(&buffer[..length]);
            }
            let total = sender.rest();
            while stream.position() < total {
                let length = near.read(&mut buffer).unwrap();
                stream.take(&buffer[..length]);
            }
            assert_eq!((stream.position(), total % PERIOD as u64), (total, 0));
        }
        assert_eq!((stream.verdict(), sender.failure()), (Ok(()), None));
        near.set_nonblocking(true).unwrap();
        assert_eq!(near.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_arrived_is_acknowledged_read_or_not() {
        let (sender, mut near, _) = connected();
        assert_eq!(sender.acknowledged(), Ok(0));
        sender.begin();
        let total = sender.rest();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let mut read = 0;
        while sender.acknowledged().unwrap() != total {
            assert!(std::time::Instant::now() < deadline, "{:?}", sender.acknowledged());
            // The receiver acknowledges what it reads, but the sender's TCP does not look while the sender is
            // in a call.
            if sender.acknowledged().unwrap() >= read {
                read += near.read(&mut [0; 50_000]).unwrap() as u64;
            } else {
                thread::yield_now();
            }
        }
        assert!(total >= PERIOD as u64);
    }

    #[test]
    fn a_sender_that_waits_for_room_ends_with_its_handle() {
        let (sender, near, _) = connected();
        sender.begin();
        drop(sender);
        drop(near);
    }

    #[test]
    fn a_sender_whose_peer_went_says_so() {
        let (sender, near, _) = connected();
        drop(near);
        sender.begin();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while sender.failure().is_none() {
            assert!(std::time::Instant::now() < deadline, "it goes on");
            thread::yield_now();
        }
        assert!(sender.failure().unwrap().starts_with("the sender failed: "));
    }
}
