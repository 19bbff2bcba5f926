//! The protocol between the receiving host and the sending one: one JSON value a line, over a control
//! connection.
//!
//! Contracts:
//!
//! 1. The sending host speaks first and says what it is. The receiving host answers, and gives the orders from
//!    then on; each [`Order`] has one [`Answer`].
//! 2. A line has a limit of bytes, and a wait for a line also checks whether the user wants the end.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use handoff_lab::StopFlag;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::TIMEOUT;

/// The version of this protocol, and of the pattern.
const EDITION: u32 = 3;
/// The most bytes of a line.
const LONGEST: usize = 4 << 10;
/// The time between two checks of a wait whether the user wants the end.
pub(crate) const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What the sending host says about itself.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    handoff_bench_recv: u32,
    version: String,
}

impl Hello {
    pub(crate) fn ours() -> Self {
        Self { handoff_bench_recv: EDITION, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Checks that the sending host speaks this version.
    ///
    /// # Errors
    ///
    /// If the host speaks another version, in one line.
    pub(crate) fn must_fit(&self) -> Result<(), String> {
        match self.handoff_bench_recv {
            EDITION => Ok(()),
            _ => Err(format!(
                "the sending host has handoff {}, the receiving one {}: take the same on both",
                self.version,
                env!("CARGO_PKG_VERSION")
            )),
        }
    }
}

/// An order to the sending host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Make this connection, to this port. The answer is 0 if nobody listens there, otherwise 1.
    Connect { connection: u64, port: u16 },
    /// Send over this connection until told to rest.
    Begin { connection: u64 },
    /// Go on to the pattern's end. The answer is the number of bytes sent by then.
    Rest { connection: u64 },
    /// Say how many of the connection's bytes the receiving host has acknowledged.
    Acknowledged { connection: u64 },
    /// Say how many nanoseconds the connection's thread has run.
    Ran { connection: u64 },
    /// Say how many nanoseconds the connection's thread was kept from its processor.
    Waited { connection: u64 },
    /// End this connection.
    End { connection: u64 },
    /// Expect no more orders: the table is complete.
    Leave,
}

/// How an order went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It was done. The value is the requested number, or 0.
    Done(u64),
    Failed(String),
}

/// Why no value was read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Silence {
    #[error("it is gone")]
    Gone,
    #[error("it has said nothing for {0:?}")]
    For(Duration),
    #[error("it does not speak as `handoff bench recv` does")]
    Strange,
    #[error("stopped")]
    Stopped,
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// One end of the control connection.
pub(crate) struct Talk {
    stream: TcpStream,
    /// Bytes that were read, and not parsed yet.
    heard: Vec<u8>,
    stop: StopFlag,
}

impl Talk {
    /// Takes over a connection.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub(crate) fn new(stream: TcpStream, stop: &StopFlag) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, heard: Vec::new(), stop: stop.clone() })
    }

    pub(crate) fn say(&mut self, value: &impl Serialize) -> Result<(), Silence> {
        let mut line = serde_json::to_vec(value).map_err(io::Error::from)?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Silence::Gone,
            _ => Silence::Failed(error),
        })
    }

    /// The next value. Waits at most for `timeout`; for `None`, without a limit.
    pub(crate) fn hear<T: DeserializeOwned>(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<T, Silence> {
        let begin = Instant::now();
        loop {
            if let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| Silence::Strange);
            }
            if self.heard.len() > LONGEST {
                return Err(Silence::Strange);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Silence::Stopped);
            }
            if let Some(timeout) = timeout.filter(|&timeout| begin.elapsed() > timeout) {
                return Err(Silence::For(timeout));
            }
            self.listen()?;
        }
    }

    /// Reads the bytes that are there, or that come within [`BETWEEN_LOOKS`].
    fn listen(&mut self) -> Result<(), Silence> {
        let mut events = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut events, Some(&BETWEEN_LOOKS)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            polled => polled.map_err(io::Error::from)?,
        };
        let mut piece = [0; 512];
        match self.stream.read(&mut piece) {
            Ok(0) => Err(Silence::Gone),
            Ok(length) => {
                self.heard.extend_from_slice(&piece[..length]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Silence::Gone),
            Err(error) => Err(Silence::Failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::Arc, sync::atomic::AtomicBool};

    use super::*;

    fn ends() -> (Talk, TcpStream, StopFlag) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stop: StopFlag = Arc::new(AtomicBool::new(false));
        (Talk::new(listener.accept().unwrap().0, &stop).unwrap(), far, stop)
    }

    #[test]
    fn what_is_said_is_heard_in_whatever_pieces() {
        let (mut talk, mut far, stop) = ends();
        let order = Order::Connect { connection: 3, port: 4_001 };
        let mut other = Talk::new(far.try_clone().unwrap(), &stop).unwrap();
        other.say(&order).unwrap();
        other.say(&Order::Leave).unwrap();
        far.write_all(br#"{"Fai"#).unwrap();
        assert_eq!(talk.hear::<Order>(None).unwrap(), order);
        assert_eq!(talk.hear::<Order>(None).unwrap(), Order::Leave);
        far.write_all(b"led\":\"x\"}\n").unwrap();
        assert_eq!(talk.hear::<Answer>(None).unwrap(), Answer::Failed("x".into()));
    }

    #[test]
    fn silence_has_its_reasons() {
        let (mut talk, mut far, stop) = ends();
        let timeout = Duration::from_millis(10);
        let heard = talk.hear::<Answer>(Some(timeout));
        assert!(matches!(heard, Err(Silence::For(_))), "{heard:?}");
        far.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let heard = talk.hear::<Hello>(None);
        assert!(matches!(heard, Err(Silence::Strange)), "{heard:?}");
        far.write_all(&[b'x'; LONGEST + 1]).unwrap();
        let heard = talk.hear::<Hello>(None);
        assert!(matches!(heard, Err(Silence::Strange)), "{heard:?}");
        talk.heard.clear();
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(talk.hear::<Hello>(None), Err(Silence::Stopped)));
        stop.store(false, Ordering::Relaxed);
        drop(far);
        assert!(matches!(talk.hear::<Hello>(None), Err(Silence::Gone)));
    }

    #[test]
    fn another_edition_does_not_fit() {
        Hello::ours().must_fit().unwrap();
        let other = Hello { handoff_bench_recv: EDITION + 1, ..Hello::ours() };
        assert!(other.must_fit().unwrap_err().contains("take the same"));
    }
}
