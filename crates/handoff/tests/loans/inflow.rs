//! Received streams: the spans of each come in order, and do not change while they are held.

use std::io::Write;
use std::net::TcpStream;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use handoff::{Driver, Error, Intake, Receiver, Socket, Span};

use crate::alarm::{Alarm, Whim, guarded};
use crate::traffic::tcp;

/// A span, and its content when it came.
#[derive(Debug)]
pub(crate) struct AddressRange {
    pub(crate) received: Span,
    bytes: Vec<u8>,
}

impl AddressRange {
    pub(crate) fn check(&self) {
        assert!(self.received[..] == self.bytes, "a span that is held was changed");
    }

    pub(crate) fn split(&mut self, at: usize) -> Self {
        let bytes = self.bytes.drain(..at).collect();
        Self { received: self.received.split_to(at), bytes }
    }
}

/// One stream.
pub(crate) struct Inflow {
    socket: Option<Socket>,
    receiver: Option<Receiver>,
    alarm: Option<Arc<Alarm>>,
    far: Option<TcpStream>,
    written: usize,
    /// Where the next span begins; unknown after a receiver took bytes with it.
    at: Option<usize>,
    least: usize,
    /// The receiver has reported its end.
    told: bool,
}

/// The bytes of a stream from a position on: words that count.
fn bytes_at(position: usize, len: usize) -> Vec<u8> {
    (position..position + len).map(|at| ((at / 4) as u32).to_le_bytes()[at % 4]).collect()
}

/// The position of these bytes in the stream, if they show it.
fn position(bytes: &[u8]) -> Option<usize> {
    (bytes.len() >= 8).then(|| {
        let within = |skip: usize| {
            let word = bytes[skip..skip + 4].try_into().expect("four bytes");
            let at = (u32::from_le_bytes(word) as usize * 4).checked_sub(skip)?;
            (bytes_at(at, bytes.len()) == bytes).then_some(at)
        };
        (0..4).find_map(within).expect("a span is of the stream")
    })
}

impl Inflow {
    pub(crate) fn new(driver: &Driver) -> Self {
        let (near, far) = tcp("127.0.0.1");
        far.set_nonblocking(true).expect("sets");
        let socket = Some(driver.socket(near).expect("attaches"));
        Self {
            socket,
            receiver: None,
            alarm: None,
            far: Some(far),
            written: 0,
            at: Some(0),
            least: 0,
            told: false,
        }
    }

    pub(crate) fn receive(&mut self, intake: Intake) {
        let Some(socket) = &self.socket else { return };
        match socket.receive(intake) {
            Ok(receiver) => {
                assert!(self.receiver.is_none(), "two receive from one stream");
                self.receiver = Some(receiver);
            }
            Err(Error::Busy { .. } | Error::DriverGone) => {}
            Err(Error::Invalid(_)) if self.receiver.is_some() => {}
            Err(error) => panic!("receiving: {error}"),
        }
    }

    /// Drops the receiver, with the bytes that nobody took.
    pub(crate) fn take_receiver(&mut self) -> Option<Receiver> {
        if self.receiver.is_some() {
            self.at = None;
            self.alarm = None;
            self.told = false;
        }
        self.receiver.take()
    }

    pub(crate) fn drop_socket(&mut self) {
        self.socket = None;
    }

    pub(crate) fn write(&mut self, len: usize) {
        let Some(far) = &mut self.far else { return };
        // Bytes that do not fit, or come too late, are not written.
        if let Ok(written) = far.write(&bytes_at(self.written, len)) {
            self.written += written;
        }
    }

    pub(crate) fn close(&mut self) {
        self.far = None;
    }

    fn saw(&mut self, bytes: &[u8]) {
        self.at = self.at.or_else(|| position(bytes));
        if let Some(at) = self.at {
            assert!(at >= self.least, "a span came twice");
            assert!(at + bytes.len() <= self.written, "more came than was written");
            assert!(bytes == bytes_at(at, bytes.len()), "the span at {at} differs");
            self.at = Some(at + bytes.len());
        }
        self.least = self.at.unwrap_or(self.least + bytes.len());
    }

    /// The next span; its waiter must be woken.
    pub(crate) fn next(
        &mut self,
        whim: Option<Whim>,
        awaited: &mut Vec<Arc<Alarm>>,
    ) -> Option<AddressRange> {
        let receiver = self.receiver.as_mut()?;
        let next = match whim {
            None => receiver.try_next_span(),
            Some(whim) => {
                let before = self.alarm.take();
                let alarm = Alarm::new(whim);
                let next = receiver.next_span();
                match pin!(next).poll(&mut Context::from_waker(&alarm.waker())) {
                    Poll::Ready(next) => {
                        self.alarm = before;
                        Some(next)
                    }
                    Poll::Pending => {
                        self.alarm = Some(alarm);
                        None
                    }
                }
            }
        };
        let next = next?;
        awaited.extend(self.alarm.take());
        match next {
            Some(Ok(received)) => {
                let bytes = received.to_vec();
                self.saw(&bytes);
                return Some(AddressRange { received, bytes });
            }
            Some(Err(error)) => self.ended(Err(error)),
            None => self.ended(Ok(())),
        }
        None
    }

    /// Visits everything that is there, and keeps one in so many. At the first the visitor acts.
    pub(crate) fn visit(
        &mut self,
        every: usize,
        whim: Whim,
        awaited: &mut Vec<Arc<Alarm>>,
    ) -> Vec<AddressRange> {
        let Some(mut receiver) = self.receiver.take() else { return Vec::new() };
        let (mut kept, mut number) = (Vec::new(), 0);
        let visit = || {
            receiver.visit(|span| {
                let bytes = span.to_vec();
                self.saw(&bytes);
                number += 1;
                if number == 1 {
                    whim.act();
                    assert!(span[..] == bytes, "a span changed while it was visited");
                }
                if number % every == 0 {
                    kept.push(AddressRange { received: span.keep(), bytes });
                }
            })
        };
        let end = guarded(visit).flatten();
        self.receiver = Some(receiver);
        if number > 0 || end.is_some() {
            awaited.extend(self.alarm.take());
        }
        if let Some(end) = end {
            self.ended(end);
        }
        kept
    }

    /// What its receiver reports at the end.
    fn ended(&mut self, end: Result<(), Error>) {
        let end = match end {
            Err(Error::DriverGone) => "the driver is gone".to_owned(),
            Err(error) => {
                assert!(self.far.is_none(), "receiving: {error}");
                error.to_string()
            }
            Ok(()) => {
                assert!(self.far.is_none() || self.told, "a stream ended whose peer did not");
                return;
            }
        };
        assert!(!std::mem::replace(&mut self.told, true), "another end is told: {end}");
    }

    pub(crate) fn has_receiver(&self) -> bool {
        self.receiver.is_some()
    }

    /// Whether everything written has come.
    pub(crate) fn is_through(&self) -> bool {
        self.receiver.is_none() || self.at.is_none_or(|at| at == self.written)
    }
}
