//! The loop in user space. All engines in it handle requests in the same way; a [`Carrier`] brings requests
//! and returns results.

use std::io;

use io_uring::cqueue;
use rustix::time::{ClockId, clock_gettime};

use crate::queue::Queue;
use crate::request::{Done, Entries};

/// Completions taken at a time.
const BATCH: usize = 64;

/// The commands that bring requests and return results.
pub(super) trait Carrier {
    /// Asks the driver for requests.
    fn begin(&mut self, queue: &mut Queue) -> io::Result<()>;

    /// A command has completed. Adds the tags of arrived requests; returns whether the device is stopped
    /// and all commands have come back.
    fn completed(
        &mut self,
        queue: &mut Queue,
        command: u32,
        completion: &cqueue::Entry,
        arrived: &mut Vec<u32>,
    ) -> io::Result<bool>;

    /// Returns the result of a request.
    fn answer(&mut self, queue: &mut Queue, tag: u32, result: i32);

    /// All completions of a turn have been looked at.
    fn turned(&mut self, queue: &mut Queue);
}

pub(super) fn run(
    queue: &mut Queue,
    mut carrier: impl Carrier,
    started: impl FnOnce(),
) -> io::Result<()> {
    let mut batch = [const { std::mem::MaybeUninit::<cqueue::Entry>::uninit() }; BATCH];
    let mut entries = Entries::new();
    // Written, so that it has its pages.
    let mut arrived: Vec<u32> = (0..queue.config.depth).collect();
    carrier.begin(queue)?;
    started();
    loop {
        queue.enter()?;
        queue.requests.turn();
        let now = now();
        loop {
            let done = queue.ring.completion().fill(&mut batch);
            if done.is_empty() {
                break;
            }
            for completion in done {
                match Done::of(completion.user_data()) {
                    Done::Command(command) => {
                        arrived.clear();
                        if carrier.completed(queue, command, completion, &mut arrived)? {
                            return Ok(());
                        }
                        for &tag in &arrived {
                            let descriptor = queue.descriptor(tag)?;
                            let end = queue.requests.arrived(tag, &descriptor, now, &mut entries);
                            go_on(queue, &mut carrier, tag, end, &entries);
                        }
                    }
                    Done::Piece { tag, slot } => {
                        let piece = (tag, slot);
                        let end =
                            queue.requests.moved(piece, completion.result(), now, &mut entries);
                        go_on(queue, &mut carrier, tag, end, &entries);
                    }
                    Done::Missed(tag) => {
                        queue.requests.missed(tag, completion.result());
                        take_answers(queue, &mut carrier, now, &mut entries);
                    }
                    Done::Answered => {
                        if !cqueue::more(completion.flags()) && completion.result() >= 0 {
                            queue.listen();
                        }
                        take_answers(queue, &mut carrier, now, &mut entries);
                    }
                }
            }
        }
        carrier.turned(queue);
    }
}

/// The mirror's clerk has answered some of the requests that wait.
fn take_answers(queue: &mut Queue, carrier: &mut impl Carrier, now: u64, entries: &mut Entries) {
    for tag in 0..queue.config.depth {
        let end = queue.requests.answered(tag, now, entries);
        go_on(queue, carrier, tag, end, entries);
    }
}

/// A request has a result, or has more to do.
fn go_on(
    queue: &mut Queue,
    carrier: &mut impl Carrier,
    tag: u32,
    end: Option<i32>,
    entries: &Entries,
) {
    match end {
        Some(result) => carrier.answer(queue, tag, result),
        None => queue.push_all(entries),
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
