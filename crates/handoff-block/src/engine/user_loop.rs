//! The loop in user space, one command for each request.
//!
//! Minimum kernel: 6.16 where buffers are lent (`UBLK_F_AUTO_BUF_REG`), else 6.6. A request's buffer
//! is registered with our ring, under its tag, before we hear of it, and comes back with the commit;
//! without, the driver copies into and out of our memory.

use std::io;

use handoff_sys::ublk;
use io_uring::cqueue;
use rustix::time::{ClockId, clock_gettime};

use crate::life::{Done, Entries};
use crate::queue::Queue;

/// Completions taken over at a time.
const BATCH: usize = 64;

pub(super) fn run(queue: &mut Queue, started: impl FnOnce()) -> io::Result<()> {
    let mut batch = [const { std::mem::MaybeUninit::<cqueue::Entry>::uninit() }; BATCH];
    let mut entries = Entries::new();
    queue.fetch_all()?;
    started();
    loop {
        queue.enter()?;
        queue.life.turn();
        let now = now();
        loop {
            let done = queue.ring.completion().fill(&mut batch);
            if done.is_empty() {
                break;
            }
            for completion in done {
                if take(queue, completion, now, &mut entries)? {
                    return Ok(());
                }
            }
        }
    }
}

/// Whether the device is stopped and all commands have come back.
fn take(
    queue: &mut Queue,
    completion: &cqueue::Entry,
    now: u64,
    entries: &mut Entries,
) -> io::Result<bool> {
    let (tag, result) = match Done::of(completion.user_data()) {
        Done::Command(_) if completion.result() != 0 => return queue.is_gone(completion.result()),
        Done::Command(tag) => {
            let descriptor = queue.descriptor(tag);
            (tag, queue.life.arrived(tag, &descriptor, now, entries))
        }
        Done::Piece { tag, slot } => {
            (tag, queue.life.moved((tag, slot), completion.result(), now, entries))
        }
    };
    if let Some(result) = result {
        queue.life.command(ublk::U_IO_COMMIT_AND_FETCH_REQ, tag, result, entries);
    }
    queue.push_all(entries);
    Ok(false)
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
