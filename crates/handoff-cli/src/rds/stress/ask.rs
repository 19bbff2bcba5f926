//! The asking side of `handoff rds stress`: tasks, each with a port and so many requests under way.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_lite::future::yield_now;
use handoff::{Buffer, Driver, Region};
use handoff_command::Failure;
use handoff_net::rds::failure;
use handoff_net::rds::{Host, Port};
use handoff_rds::End;

use super::super::frame::{self, Head, Kind};
use super::shared::{AT_ONCE, Run, StressArgs};

/// How long to wait at the end, from the last answer on, for answers to requests that were given up.
const GRACE: Duration = Duration::from_secs(5);
/// A peer that says nothing for so long, and for twice its longest answer, may have been restarted:
/// requests that it has not answered are sent again.
const SILENCE: Duration = Duration::from_secs(2);
/// A request is lost if this many later ones of its task were answered, for each that may be under way.
const OVERTAKEN: u64 = 4;

/// A slot for a request: its buffer is reused when it is back and its answer is there.
struct Slot {
    /// The peer's number.
    peer: usize,
    to: SocketAddr,
    buffer: Option<Buffer>,
    number: u64,
    /// The request with that number is in the buffer, and was refused so far.
    made: bool,
    waits: bool,
    sent: Instant,
    /// How many were sent to the peer before.
    order: u64,
    /// The peer was restarted before it acknowledged the request.
    lost: bool,
    /// Requests that were sent again, and may still be answered.
    given_up: Vec<u64>,
}

/// What a task knows about a peer.
struct Known {
    /// Requests sent to it.
    sent: u64,
    /// The latest of them that was answered.
    answered: u64,
    heard: Instant,
    /// The longest time that an answer took.
    longest: Option<Duration>,
}

impl Known {
    /// How long it may be silent.
    fn silence(&self, timeout: Duration) -> Duration {
        self.longest.map_or(timeout / 2, |longest| SILENCE.max(longest * 2))
    }
}

/// A task, with its port and its memory.
pub(super) struct Asking {
    port: Port,
    slots: Vec<Slot>,
    peers: Vec<Known>,
}

impl Asking {
    pub(super) fn set_up(args: &StressArgs, host: &Host, driver: &Driver) -> Result<Self, Failure> {
        let port = host.bind_free(driver, args.copy)?;
        let count = args.peers.len() * usize::from(args.depth);
        let room = args.request.next_multiple_of(4096);
        let mut region = Region::anonymous(count * room).map_err(Failure::failed)?;
        // Registered pages are not pinned for each send; without registration it works as well.
        if let Err(error) = driver.register(&region) {
            tracing::info!(%error, "buffers stay unregistered");
        }
        let now = Instant::now();
        let slots = (0..count).map(|at| {
            let mut buffer = region.take(room).expect("so many were mapped");
            buffer.set_len(args.request);
            let peer = at % args.peers.len();
            Slot {
                peer,
                to: (args.peers[peer], args.port).into(),
                buffer: Some(buffer),
                number: at as u64,
                made: false,
                waits: false,
                sent: now,
                order: 0,
                lost: false,
                given_up: Vec::new(),
            }
        });
        let known = |_| Known { sent: 0, answered: 0, heard: now, longest: None };
        let peers = args.peers.iter().map(known).collect();
        Ok(Self { port, slots: slots.collect(), peers })
    }

    pub(super) async fn run(self, run: &Run<'_>) -> Result<(), Failure> {
        let (args, Self { port, mut slots, mut peers }) = (run.args, self);
        let mut over_since = None;
        let mut batch = Vec::new();
        loop {
            port.completions(&mut batch)?;
            for back in batch.drain(..) {
                run.took_back(back.tally);
                let slot = &mut slots[back.cookie as usize];
                slot.buffer = Some(back.payload);
                slot.lost = back.end == End::PeerRestarted;
            }
            let mut checked = 0;
            while checked < AT_ONCE
                && let Some(received) = port.receive()?
            {
                checked += received.payload.len();
                answered(run, &mut slots, &mut peers, &received.payload);
            }
            let last = run.answered.get();
            let mut more = checked >= AT_ONCE;
            if run.is_over(Some(10)) {
                let over = *over_since.get_or_insert_with(Instant::now);
                let waiting = slots.iter().filter(|slot| slot.waits).count();
                let late: usize = slots.iter().map(|slot| slot.given_up.len()).sum();
                let back = slots.iter().all(|slot| slot.buffer.is_some());
                let timeout = match (waiting, late) {
                    (0, 0) if back => Duration::ZERO,
                    (0, _) if back => GRACE,
                    _ => Duration::from_secs(args.timeout.into()),
                };
                if run.context.stop.requested() || over.max(last).elapsed() >= timeout {
                    let counted = &mut *run.counted.borrow_mut();
                    counted.unanswered += waiting as u64;
                    counted.lost += late as u64;
                    return Ok(());
                }
            } else {
                give_up_lost(run, &mut slots, &peers);
                more |= send(run, &port, &mut slots, &mut peers)?;
            }
            if last.elapsed().as_secs() >= u64::from(args.timeout) {
                return Err(Failure::failed(format!(
                    "no answer for {} s from any of {}: are they reachable, and does `handoff rds stress` answer at \
                     port {}?",
                    args.timeout,
                    args.peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                    args.port
                )));
            }
            if more {
                yield_now().await;
            } else {
                port.changed(run.look()).await?;
            }
        }
    }
}

fn answered(run: &Run<'_>, slots: &mut [Slot], peers: &mut [Known], bytes: &[u8]) {
    let now = Instant::now();
    run.answered.set(now);
    let counted = &mut *run.counted.borrow_mut();
    let found = frame::head(bytes);
    let slot = found.and_then(|head| Some((head, slots.get_mut(head.number as u32 as usize)?)));
    let Some((head, slot)) = slot else {
        counted.corrupt += 1;
        return;
    };
    let intact = run.args.no_verify
        || head.kind == Kind::Answer
            && bytes.len() == run.args.answer
            && frame::is_intact(bytes, head.number);
    counted.corrupt += u64::from(!intact);
    let peer = &mut peers[slot.peer];
    peer.heard = now;
    if let Some(late) = slot.given_up.iter().position(|number| *number == head.number) {
        slot.given_up.swap_remove(late);
    } else if slot.waits && slot.number == head.number {
        counted.messages += 1;
        counted.bytes += run.args.request as u64;
        let time = slot.sent.elapsed();
        counted.times.add(time);
        peer.longest = peer.longest.max(Some(time));
        peer.answered = peer.answered.max(slot.order);
        slot.waits = false;
    } else if intact {
        // Nobody asked for it; changed content is counted above.
        counted.corrupt += 1;
    }
}

/// Requests that will not be answered any more are sent again, with another number.
fn give_up_lost(run: &Run<'_>, slots: &mut [Slot], peers: &[Known]) {
    let timeout = Duration::from_secs(run.args.timeout.into());
    for slot in slots.iter_mut().filter(|slot| slot.waits && slot.buffer.is_some()) {
        let peer = &peers[slot.peer];
        let overtaken = peer.answered > slot.order + OVERTAKEN * u64::from(run.args.depth);
        let silent = slot.sent.max(peer.heard).elapsed() >= peer.silence(timeout);
        if slot.lost || overtaken || silent {
            slot.given_up.push(slot.number);
            (slot.waits, slot.lost) = (false, false);
            run.counted.borrow_mut().asked_again += 1;
        }
    }
}

/// Sends [`AT_ONCE`], and returns whether there may be more to send.
fn send(
    run: &Run<'_>,
    port: &Port,
    slots: &mut [Slot],
    peers: &mut [Known],
) -> Result<bool, Failure> {
    let mut sent = 0;
    // Peers that take no more for now.
    let mut full = Vec::new();
    for slot in slots.iter_mut().filter(|slot| !slot.waits) {
        if full.contains(&slot.to) {
            continue;
        }
        let Some(mut buffer) = slot.buffer.take() else { continue };
        if !slot.made {
            slot.number = slot.number.wrapping_add(1 << 32);
            let answer = run.args.answer as u32;
            let head = Head { number: slot.number, answer, kind: Kind::Request };
            frame::fill(&mut buffer, head, !run.args.no_verify);
            slot.made = true;
        }
        slot.sent = Instant::now();
        match port.send(slot.to, buffer, slot.number as u32) {
            Ok(()) => {
                (slot.made, slot.waits) = (false, true);
                let peer = &mut peers[slot.peer];
                (slot.order, peer.sent) = (peer.sent, peer.sent + 1);
            }
            Err(refused) => {
                slot.buffer = Some(refused.payload);
                if !refused.error.is_temporary() {
                    return Err(failure(refused.error));
                }
                full.push(slot.to);
                continue;
            }
        }
        sent += run.args.request;
        if sent >= AT_ONCE {
            return Ok(true);
        }
    }
    Ok(false)
}
