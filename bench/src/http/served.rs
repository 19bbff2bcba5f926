//! A server and its client, as an engine of the measuring frame.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    Job,
    asking::Asking,
    testbed::{Port, Testbed},
    wrk::Wrk,
};
use crate::{
    measure::{Engine, Slot, Tally},
    network::{TIMEOUT, account::Account},
};

/// How long a server serves between two looks at its client.
const TURN: Duration = Duration::from_millis(2);
/// The time for requests under way to end with their connections.
const AFTERMATH: Duration = Duration::from_millis(10);
/// The least number of bytes that are served for the witness.
const WITNESSED: u64 = 4 << 20;

/// A server at work.
pub(super) trait Server {
    /// Serves for this long, on the calling thread unless the server is another program.
    ///
    /// # Errors
    ///
    /// One line that says what ended the server.
    fn serve_for(&mut self, time: Duration) -> Result<(), String>;

    /// The server's process; `None` if the server is no other program.
    fn process(&self) -> Option<u32> {
        None
    }

    /// What happened to the bytes that the server has served.
    fn copies(&self) -> Copies;
}

/// Makes a server that listens at a port, or says in one line why it cannot.
pub(super) type MakeServer<'a> =
    Box<dyn Fn(&Port<'a>) -> Result<Box<dyn Server + 'a>, String> + 'a>;

/// What is known about a server's copies.
#[derive(Debug, Clone, Copy)]
pub(super) enum Copies {
    Unknown,
    /// Each byte was copied this many times.
    OfEach(u64),
    /// The server's counts so far.
    Counted(Counts),
}

/// Counts of bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// All bytes sent.
    pub(super) sent: u64,
    /// Bytes copied, counted once for each hop.
    pub(super) copied: u64,
    /// Bytes that may have been copied: nobody reports it.
    pub(super) unknown: u64,
}

impl Copies {
    /// The bytes copied since `earlier`, while `bytes` bytes were served; `None` if nobody knows.
    fn since(self, earlier: Self, bytes: u64) -> Option<u64> {
        match (earlier, self) {
            (_, Self::OfEach(copies)) => Some(bytes * copies),
            (Self::Counted(before), Self::Counted(after)) => {
                let share =
                    (after.copied - before.copied) as f64 / (after.sent - before.sent) as f64;
                let known = after.unknown == before.unknown && share.is_finite();
                known.then_some((bytes as f64 * share) as u64)
            }
            _ => None,
        }
    }
}

pub(super) struct Served<'a> {
    server: Box<dyn Server + 'a>,
    port: Port<'a>,
    testbed: &'a Testbed,
    job: Job,
    /// Bytes of an answer's head.
    head: u64,
    account: Account<'a>,
    attested: bool,
}

impl<'a> Served<'a> {
    /// Makes a server, and sends it one request.
    ///
    /// # Errors
    ///
    /// One line that says why there is no server, or what it answers instead.
    pub(super) fn new(
        make: &MakeServer<'a>,
        testbed: &'a Testbed,
        job: Job,
    ) -> Result<Self, String> {
        let (port, network) = (testbed.port()?, testbed.network());
        let mut server = make(&port)?;
        let account = Account::new(network.napi_of_connected().to_vec(), vec![network]);
        let account = match server.process() {
            Some(process) => account.of_program(process),
            None => account,
        };
        let asking = Asking::new(testbed, port.address());
        let head = ask(&mut *server, asking, job.size, 1)?;
        Ok(Self { server, port, testbed, job, head, account, attested: false })
    }

    /// Works for the witness: requests whole answers, at least [`WITNESSED`] bytes.
    fn answer(&mut self) -> Result<Tally, String> {
        let times = WITNESSED.div_ceil(self.job.size);
        let before = self.server.copies();
        let asking = Asking::new(self.testbed, self.port.address());
        ask(&mut *self.server, asking, self.job.size, times)?;
        let bytes = times * self.job.size;
        let copied = self.server.copies().since(before, bytes);
        Ok(Tally { bytes, copied, ..Tally::default() })
    }

    /// Serves until the first answers have arrived, and for a quarter of a slot more.
    fn get_going(&mut self, wrk: &mut Wrk, slot: &Slot<'_>) -> Result<(), String> {
        let (begin, enough) = (Instant::now(), u64::from(self.job.connections) * self.head);
        let before = wrk.arrived()?;
        while wrk.arrived()? < before + enough {
            self.server.serve_for(TURN)?;
            wrk.must_run(slot)?;
            if begin.elapsed() > TIMEOUT {
                return Err(format!("it answers nothing for {TIMEOUT:?}"));
            }
        }
        self.server.serve_for(slot.length() / 4)
    }
}

/// Sends requests to a server that serves meanwhile. Returns the bytes of an answer's head.
fn ask(server: &mut dyn Server, asking: Asking, size: u64, times: u64) -> Result<u64, String> {
    let gone = AtomicBool::new(false);
    thread::scope(|scope| {
        let asked = scope.spawn(|| asking.ask(size, times, &gone));
        while !asked.is_finished() {
            server.serve_for(TURN).inspect_err(|_| gone.store(true, Ordering::Relaxed))?;
        }
        // The thread reported its panic itself.
        asked.join().unwrap_or_else(|_| Err("who asks has panicked".to_owned()))
    })
}

impl Engine for Served<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        if self.attested {
            return self.answer();
        }
        let mut wrk = Wrk::start(self.testbed, self.port.address(), self.job)?;
        self.get_going(&mut wrk, slot)?;
        let (arrived, copies) = (wrk.arrived()?, self.server.copies());
        let begun = self.account.begin(wrk.waits())?;
        self.server.serve_for(slot.length())?;
        let tally = self.account.end(&begun, || wrk.waits())?;
        let (arrived, after) = (wrk.arrived()? - arrived, self.server.copies());
        wrk.end()?;
        self.server.serve_for(AFTERMATH)?;
        let Job { size, .. } = self.job;
        let bytes = (u128::from(arrived) * u128::from(size) / u128::from(size + self.head)) as u64;
        Ok(Tally { bytes, copied: after.since(copies, bytes), ..tally })
    }

    /// Each slot begins with a warm-up of its own, in `get_going`.
    fn warms_up(&self) -> bool {
        false
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.attested = true;
        Ok(())
    }

    fn implied(&self, reported: f64) -> f64 {
        reported + self.testbed.network().joint().copies_of_sent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_those_since_the_earlier_look() {
        let counted = |sent, copied, unknown| Copies::Counted(Counts { sent, copied, unknown });
        assert_eq!(counted(300, 150, 0).since(counted(100, 50, 0), 1_000), Some(500));
        assert_eq!(counted(300, 150, 1).since(counted(100, 50, 0), 1_000), None);
        assert_eq!(counted(100, 50, 0).since(counted(100, 50, 0), 1_000), None);
        assert_eq!(Copies::OfEach(2).since(Copies::OfEach(2), 1_000), Some(2_000));
        assert_eq!(Copies::Unknown.since(Copies::Unknown, 1_000), None);
    }
}
