//! One port of an engine, and the peer at the other end.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use handoff::{Buffer, Executor, Tally};
use handoff_command::allow_list::AllowList;
use handoff_command::failure::Failed;
use handoff_command::{Failure, clock};
use handoff_net::rds::{self, Host, Port, UNDER_WAY, failure};
use handoff_rds::wire::PORT;
use handoff_rds::{Error, Refused};

use crate::args::EngineName;
use crate::job::Job;
use crate::wire::{Frame, HELLO_LEN, Hello};

/// How often a side says hello that has nothing else to say.
const SIGN: Duration = Duration::from_secs(2);
/// A peer that says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(30);
/// How long to wait, at the end, for the last messages to be acknowledged.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The most bytes that the receiver may not have taken yet: less than its port holds before it is
/// congested. The kernel has been seen to stay congested after it had been read.
const WINDOW: u64 = 2 << 20;
/// The most answers to strangers in a transfer, since a rate would not do: what a stranger does not acknowledge
/// stays in the port's send buffer, in which the peer's messages need room.
const MOST_REFUSALS: usize = 64;
/// Messages of strangers that are read before everybody else has a turn.
const AT_A_TIME: usize = 64;
/// Between looks if nothing reports a change.
const LOOK: Duration = Duration::from_millis(80);

/// The cookie of everything but payload.
const WORDS: u32 = 0;

pub(super) struct Line<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) port: Port,
    pub(super) engine: &'static str,
    pub(super) why: String,
    /// The longest message.
    pub(super) longest: usize,
    /// Who may send to it.
    pub(super) allow_list: AllowList,
    /// Answers to strangers.
    refusals: Cell<usize>,
    peer: Cell<Option<SocketAddr>>,
    /// The message that shows we are alive.
    hello: Cell<Option<Hello>>,
    heard: Cell<Instant>,
    spoken: Cell<Instant>,
    /// A received message that nobody has asked for yet.
    waiting: RefCell<Option<Vec<u8>>>,
    pub(super) free: RefCell<Vec<Buffer>>,
    /// Cookies of lent payload, and where each ends in the stream of frames.
    lent: RefCell<VecDeque<(u32, u64)>>,
    /// Returned payload that the peer may not have taken yet, with its end.
    held: RefCell<Vec<(u64, Buffer)>>,
    /// Bytes of the stream of frames that were sent, and that the receiver has taken.
    sent: Cell<u64>,
    taken: Cell<u64>,
    under_way: Cell<usize>,
    tally: Cell<Tally>,
}

/// Runs `work` with a line at `own`, at this port or a free one. `allow_list` are who may send to it. The work
/// itself looks for the stop.
///
/// # Errors
///
/// No engine, a port in use, errors of `work`.
pub(super) fn with<T>(
    job: &Job<'_>,
    own: IpAddr,
    port: Option<u16>,
    allow_list: AllowList,
    work: impl AsyncFnOnce(&Line<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let copy = job.order.args.engine == EngineName::Copy;
    let at = SocketAddr::new(own, PORT);
    let (host, passed_over) =
        Host::new(&job.driver, job.order.args.rds, at, allow_list.clone(), copy, UNDER_WAY)?;
    host.announce(passed_over.as_deref());
    let executor = Executor::new(&job.driver);
    host.serve(&executor);
    let port = match port {
        Some(port) => host.bind(&job.driver, port, copy)?,
        None => host.bind_free(&job.driver, copy)?,
    };
    let line = Line {
        job,
        longest: port.longest()?,
        port,
        engine: host.name(),
        why: match (passed_over, copy) {
            (Some(why), _) => why,
            (None, true) => "asked to copy".to_owned(),
            (None, false) => "messages are lent".to_owned(),
        },
        allow_list,
        refusals: Cell::new(0),
        peer: Cell::new(None),
        hello: Cell::new(None),
        heard: Cell::new(Instant::now()),
        spoken: Cell::new(Instant::now()),
        waiting: RefCell::default(),
        free: RefCell::default(),
        lent: RefCell::default(),
        held: RefCell::default(),
        sent: Cell::new(0),
        taken: Cell::new(0),
        under_way: Cell::new(0),
        tally: Cell::default(),
    };
    let ended = executor.run(async {
        let ended = work(&line).await;
        if let Err(failure) = &ended {
            line.give_up(failure).await;
        }
        line.settle().await;
        ended
    });
    ended.failed("waiting in the kernel")?
}

impl Line<'_> {
    /// From here on this reads and writes to the peer, and sends this hello to show that we are alive.
    pub(super) fn begin(&self, peer: SocketAddr, hello: &Hello) {
        self.peer.set(Some(peer));
        self.hello.set(Some(*hello));
        self.heard.set(Instant::now());
    }

    /// Takes back what is back.
    pub(super) fn reap(&self) -> Result<(), Failure> {
        let mut batch = Vec::new();
        self.port.completions(&mut batch)?;
        self.under_way.set(self.under_way.get() - batch.len());
        for back in batch {
            let mut lent = self.lent.borrow_mut();
            let place = lent.iter().position(|(cookie, _)| *cookie == back.cookie);
            if let Some((_, end)) = place.and_then(|place| lent.remove(place)) {
                let mut tally = self.tally.get();
                tally += back.tally;
                self.tally.set(tally);
                self.held.borrow_mut().push((end, back.payload));
            }
        }
        let (mut free, taken) = (self.free.borrow_mut(), self.taken.get());
        let mut held = self.held.borrow_mut();
        free.extend(held.extract_if(.., |(end, _)| *end <= taken).map(|(_, buffer)| buffer));
        Ok(())
    }

    /// What happened to returned payload.
    pub(super) fn tally(&self) -> Tally {
        self.tally.get()
    }

    /// Waits for a change, or a while.
    pub(super) async fn changed(&self) -> Result<(), Failure> {
        // A waiting message would keep the port readable.
        let waits = self.waiting.borrow().is_some();
        if waits {
            self.look().await;
            return Ok(());
        }
        self.port.changed(self.look()).await
    }

    /// Waits for a moment, then it is time to look again.
    async fn look(&self) {
        clock::pass(&self.job.driver, LOOK).await;
    }

    /// Does the regular work: takes buffers back, reads the peer, shows that we are alive.
    ///
    /// # Errors
    ///
    /// A peer that is silent for too long.
    pub(super) fn attend(&self) -> Result<(), Failure> {
        self.reap()?;
        let (Some(peer), Some(ours)) = (self.peer.get(), self.hello.get()) else { return Ok(()) };
        let mut strangers = 0;
        while self.waiting.borrow().is_none() && strangers < AT_A_TIME {
            let Some(received) = self.port.receive()? else { break };
            if received.from != peer {
                strangers += 1;
                if self.allow_list.lets_in(received.from) {
                    self.turn_away(
                        received.from,
                        &received.payload,
                        "another transfer is under way",
                    );
                }
                continue;
            }
            self.heard.set(Instant::now());
            // Nothing else equals a hello, which has random bits of this transfer.
            match sign(&ours, &received.payload) {
                // A receiver counts itself.
                Some(Hello { sends: false, length: Some(taken), .. }) if ours.sends => {
                    self.taken.set(taken);
                }
                Some(_) => {}
                None => drop(self.waiting.replace(Some(received.payload))),
            }
        }
        if self.waiting.borrow().is_none() && self.heard.get().elapsed() > SILENCE {
            return Err(Failure::failed(format!(
                "{peer} says nothing for {} s: it has ended, or cannot be reached",
                SILENCE.as_secs()
            )));
        }
        if self.spoken.get().elapsed() > SIGN {
            self.try_say(peer, ours.encode().to_vec())?;
        }
        Ok(())
    }

    /// Tells the sender how many bytes of its frames were taken, if it does not know and that can be sent
    /// now.
    ///
    /// # Errors
    ///
    /// As [`Line::say`].
    pub(super) fn confirm(&self, bytes: u64) -> Result<(), Failure> {
        let (Some(peer), Some(ours)) = (self.peer.get(), self.hello.get()) else { return Ok(()) };
        if bytes > self.taken.get() {
            // If it cannot be sent now, the next hello has it.
            let ours = Hello { length: Some(bytes), ..ours };
            self.hello.set(Some(ours));
            if self.try_say(peer, ours.encode().to_vec())? {
                self.taken.set(bytes);
            }
        }
        Ok(())
    }

    /// Bytes confirmed last.
    pub(super) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Does not receive from somebody who may come, and tells them why if they say hello.
    pub(super) fn turn_away(&self, from: SocketAddr, bytes: &[u8], why: &str) {
        self.allow_list.turned_away(from, why);
        let bytes = <&[u8; HELLO_LEN]>::try_from(bytes);
        let greets = bytes.is_ok_and(|bytes| Hello::decode(bytes).is_ok());
        if greets && self.refusals.get() < MOST_REFUSALS {
            self.refusals.set(self.refusals.get() + 1);
            let answer = Frame::Answer { bytes: 0, outcome: Err(why.to_owned()) };
            // A sender that is not told gives up for lack of an answer.
            let _ = self.try_say(from, answer.encode());
        }
    }

    /// The next part of the peer's frames, if it is there.
    ///
    /// # Errors
    ///
    /// As [`Line::attend`].
    pub(super) fn heard(&self) -> Result<Option<Vec<u8>>, Failure> {
        self.attend()?;
        Ok(self.waiting.take())
    }

    /// The next part of the peer's frames.
    ///
    /// # Errors
    ///
    /// As [`Line::attend`].
    pub(super) async fn hear(&self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(bytes) = self.heard()? {
                return Ok(bytes);
            }
            self.changed().await?;
        }
    }

    /// Waits for something, and meanwhile serves the peer by [`Line::attend`] or more.
    ///
    /// # Errors
    ///
    /// Those of both.
    pub(super) async fn meanwhile<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
        mut attend: impl FnMut() -> Result<(), Failure>,
    ) -> Result<T, Failure> {
        let mut work = pin!(work);
        loop {
            match select(work.as_mut(), pin!(self.changed())).await {
                Either::Left((ended, _)) => return ended,
                Either::Right((changed, _)) => changed?,
            }
            attend()?;
        }
    }

    /// Says something whose return nobody waits for, if it can be sent now.
    pub(super) fn try_say(&self, to: SocketAddr, bytes: Vec<u8>) -> Result<bool, Failure> {
        match self.port.send_copied(to, Buffer::from(bytes), WORDS) {
            Ok(()) => {
                self.under_way.set(self.under_way.get() + 1);
                // What strangers hear shows the peer nothing.
                if self.peer.get() == Some(to) {
                    self.spoken.set(Instant::now());
                }
                Ok(true)
            }
            Err(Refused { error, .. }) if error.is_temporary() => Ok(false),
            Err(Refused { error, .. }) => Err(failure(error)),
        }
    }

    /// Says a frame, as soon as that is possible.
    ///
    /// # Errors
    ///
    /// A peer that is silent, or cannot be sent to.
    pub(super) async fn say(&self, frame: &[u8]) -> Result<(), Failure> {
        let peer = self.peer.get().ok_or_else(|| Failure::failed("nobody is there to tell"))?;
        while !self.try_say(peer, frame.to_vec())? {
            self.attend()?;
            self.changed().await?;
        }
        self.sent.set(self.sent.get() + frame.len() as u64);
        Ok(())
    }

    /// Lends a piece of payload, as soon as that is possible and the peer has taken enough of the earlier
    /// ones; its buffer is free again when it is back and the peer has taken it.
    ///
    /// # Errors
    ///
    /// As [`Line::say`].
    pub(super) async fn lend(&self, mut payload: Buffer) -> Result<(), Failure> {
        let peer = self.peer.get().ok_or_else(|| Failure::failed("nobody is there to send to"))?;
        let end = self.sent.get() + payload.len() as u64;
        while end > self.taken.get() + WINDOW {
            self.attend()?;
            self.changed().await?;
        }
        // Differs from the others under way, and from that of words.
        let cookie = end as u32 | 1 << 31;
        loop {
            match self.port.send(peer, payload, cookie) {
                Ok(()) => break,
                Err(Refused { payload: back, error }) => match error {
                    Error::Congested(_) | Error::Full { .. } => payload = back,
                    other => return Err(failure(other)),
                },
            }
            self.attend()?;
            self.changed().await?;
        }
        self.sent.set(end);
        self.lent.borrow_mut().push_back((cookie, end));
        self.under_way.set(self.under_way.get() + 1);
        self.spoken.set(Instant::now());
        Ok(())
    }

    /// Tells the peer why, if it does not know.
    async fn give_up(&self, failure: &Failure) {
        let (Some(peer), Some(reason)) = (self.peer.get(), failure.line()) else { return };
        let frame = match self.hello.get().is_some_and(|ours| ours.sends) {
            true => Frame::Abort { reason },
            false => Frame::Answer { bytes: 0, outcome: Err(reason) },
        };
        // What is still under way comes first; a peer that does not read it notices the silence.
        let begin = Instant::now();
        while begin.elapsed() < LAST_WORDS
            && self.try_say(peer, frame.encode()).is_ok_and(|sent| !sent)
            && self.reap().is_ok()
        {
            self.look().await;
        }
    }

    /// Waits for everything under way, so that it is counted, the peer has it, and the engine may end.
    pub(super) async fn settle(&self) {
        let begin = Instant::now();
        let settled = || self.under_way.get() == 0 && matches!(self.port.unacknowledged(), Ok(0));
        while self.reap().is_ok() && !settled() && begin.elapsed() < LAST_WORDS {
            self.look().await;
        }
    }
}

/// The hello of the transfer of `ours` in a message.
fn sign(ours: &Hello, bytes: &[u8]) -> Option<Hello> {
    let hello = Hello::decode(bytes.try_into().ok()?).ok()?;
    (hello.transfer == ours.transfer).then_some(hello)
}

/// The name of an engine's messages in reports.
pub(super) fn reason(line: &Line<'_>, pieces: usize) -> String {
    format!("{}; pieces of at most {pieces} bytes", line.why)
}

/// A piece that fits into a message, with a note if that is less than requested.
pub(super) fn piece(line: &Line<'_>) -> usize {
    let wanted = line.job.order.args.buffer;
    if wanted > line.longest {
        line.job.order.note(format!(
            "pieces of {} bytes instead of {wanted}: {}",
            line.longest,
            rds::limit(line.longest)
        ));
    }
    wanted.min(line.longest)
}
