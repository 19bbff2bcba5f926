//! Requests that carry no payload: flush, trim, zeroes, extents, cache.

use std::ops::Range;
use std::rc::Rc;

use handoff::{Error, Result};
use handoff_nbd::request::{Extent, Operation, Request};
use handoff_nbd::server::Answer;
use handoff_nbd::wire::{ErrorCode, StateFlags};

use crate::connection::{Connection, Held};
use crate::disk::{Disk, Place};
use crate::memory::LARGE;
use crate::served::Counters;

/// The number that negotiation gives to the one metadata context.
const ALLOCATION: u32 = 1;
/// The most extents of an answer.
const EXTENTS: usize = 512;

/// Bytes that are made zero in one go: whoever writes there waits meanwhile.
const STEP: u64 = 256 << 20;

/// Counts a request that came.
pub(crate) fn count(counters: &Counters, request: &Request) {
    let what = match request.operation {
        Operation::Read { .. } => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Trim => "trim",
        Operation::Cache => "cache",
        Operation::WriteZeroes { .. } => "write_zeroes",
        Operation::BlockStatus { .. } => "block_status",
    };
    counters.write(|served| *served.requests.entry(what).or_default() += 1);
}

/// Carries a request out, and answers it.
pub(crate) async fn answer(
    connection: Rc<Connection>,
    disk: Rc<Disk>,
    request: Request,
    answer: Answer,
    held: Held,
) {
    let range = request.offset..request.offset + request.length;
    let (what, done) = match request.operation {
        Operation::Flush => ("syncing", disk.sync().await),
        Operation::Trim => ("trimming", trim(&connection, &disk, range, request.fua).await),
        Operation::Cache => ("reading ahead", disk.prefetch(range).await),
        Operation::WriteZeroes { no_hole, fast } => {
            let zeroes = Zeroes { range, no_hole, fast, fua: request.fua };
            ("writing zeroes", zeroes.write(&connection, &disk).await)
        }
        Operation::BlockStatus { one } => {
            let extents = extents(&disk, range, if one { 1 } else { EXTENTS });
            match answer.status(ALLOCATION, &extents) {
                Ok(reply) => connection.reply(&reply).await,
                Err(misuse) => connection.cut(misuse.to_string()),
            }
            drop(held);
            return;
        }
        // They have payload, and are answered elsewhere.
        Operation::Read { .. } | Operation::Write => return,
    };
    match done {
        Ok(()) => self::done(&connection, answer).await,
        Err(error) => fail(&connection, &disk, answer, what, &error).await,
    }
    drop(held);
}

/// Answers by a success.
pub(crate) async fn done(connection: &Connection, answer: Answer) {
    match answer.done() {
        Ok(head) => connection.reply(&head).await,
        Err(misuse) => connection.cut(misuse.to_string()),
    }
}

/// Answers by an error.
pub(crate) async fn fail(
    connection: &Connection,
    disk: &Disk,
    answer: Answer,
    what: &str,
    error: &Error,
) {
    connection.thread.counters.write(|served| served.refused += 1);
    let code = error.raw_os_error().map_or(ErrorCode::Io, ErrorCode::from_errno);
    let text = format!("{what} failed: {error}");
    // Clients that the disk can't serve are not to blame: this is for whoever runs the server.
    if code != ErrorCode::NotSup {
        tracing::warn!("\"{}\": {text}", disk.export.path().display());
    }
    connection.reply(&answer.fail(code, &text)).await;
}

/// Gives whole blocks back; what is left of others stays as it is.
async fn trim(connection: &Connection, disk: &Disk, range: Range<u64>, fua: bool) -> Result<()> {
    // On a device even the edges of its own blocks are none of ours.
    let Some(inner) = disk.export.layout.inner(&range) else { return Ok(()) };
    // A file that cannot do that has done as it was asked: nobody needs the bytes.
    punched(connection, disk, inner, false).await?;
    if fua { disk.sync().await } else { Ok(()) }
}

/// Makes whole blocks zero, step by step; whether the file can do that. It ends early with its connection: nobody was told
/// that it is done.
async fn punched(
    connection: &Connection,
    disk: &Disk,
    range: Range<u64>,
    keeps: bool,
) -> Result<bool> {
    let mut rest = range;
    while rest.start < rest.end {
        check(connection)?;
        let step = rest.start..rest.end.min(rest.start + STEP);
        rest.start = step.end;
        if !disk.punch(step, keeps).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn check(connection: &Connection) -> Result<()> {
    match connection.is_cut() {
        true => Err(Error::Invalid("the client has left")),
        false => Ok(()),
    }
}

struct Zeroes {
    range: Range<u64>,
    no_hole: bool,
    fast: bool,
    fua: bool,
}

impl Zeroes {
    async fn write(self, connection: &Connection, disk: &Disk) -> Result<()> {
        let Self { range, no_hole, fast, fua } = self;
        let unable = || {
            let source = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            Error::Io { action: "making zeroes without writing them", source }
        };
        match disk.export.layout.inner(&range) {
            // On a device the kernel writes zeroes where it is to leave no hole.
            Some(inner)
                if !(fast && no_hole && disk.export.is_device())
                    && punched(connection, disk, inner.clone(), no_hole).await? =>
            {
                for edge in [range.start..inner.start, inner.end..range.end] {
                    written(connection, disk, edge).await?;
                }
            }
            _ if fast => return Err(unable()),
            _ => written(connection, disk, range).await?,
        }
        if fua { disk.sync().await } else { Ok(()) }
    }
}

/// Writes zeroes as bytes.
async fn written(connection: &Connection, disk: &Disk, range: Range<u64>) -> Result<()> {
    let layout = disk.export.layout;
    let mut rest = range;
    while rest.start < rest.end {
        check(connection)?;
        let wish = layout.piece(&rest, LARGE).whole_len();
        let mut buffer = connection.thread.memory.take(wish, &connection.own).await?;
        let piece = layout.piece(&rest, buffer.capacity());
        buffer[..piece.whole_len()].fill(0);
        rest.start = piece.wanted.end;
        disk.write(&piece, buffer, false).await?;
    }
    Ok(())
}

/// The extents of a range, from its beginning. An answer may tell of a part only.
fn extents(disk: &Disk, range: Range<u64>, most: usize) -> Vec<Extent> {
    let mut all = Vec::<Extent>::new();
    let mut rest = range;
    for _ in 0..EXTENTS {
        if rest.start >= rest.end {
            break;
        }
        let (part, place) = disk.first(rest.clone(), true);
        let hole = StateFlags::HOLE | StateFlags::ZERO;
        let state = if place == Place::Hole { hole } else { StateFlags::empty() };
        let length = part.end - part.start;
        rest.start = part.end;
        let is_full = all.len() == most;
        match all.last_mut() {
            Some(last) if last.state == state => last.length += length,
            _ if is_full => break,
            _ => all.push(Extent { length, state }),
        }
    }
    all
}
