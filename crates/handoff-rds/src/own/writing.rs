//! Writes a connection: frames in order, payloads in place.

use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use handoff::{Buffer, Region, Sent, Tally};

use super::engine::{Shared, Slot};
use super::link::Link;
use super::packing::{Packing, SHORT};
use crate::protocol::{Body, MessageId};
use crate::wire::{CongestionMap, HEADER_LEN, MAP_LEN};

/// Frames handed to the library that the kernel has not taken whole.
const DEPTH: usize = 64;

/// Writes until the connection ends.
pub(super) async fn run(shared: Rc<Shared>, link: Rc<Link>) {
    let mut sends: VecDeque<Sent> = VecDeque::new();
    let mut packing = Packing::new(shared.sending);
    while !link.over.get() {
        let ready = link.ready.seen();
        if write_all(&shared, &link, &mut packing, &mut sends).await.is_err() {
            // The reader reads what has arrived, and ends it.
            link.end();
        }
        shared.settle();
        let changed = pin!(link.ready.after(ready));
        let Some(first) = sends.front_mut() else {
            if link.finishing.take()
                && let Err(error) = rustix::net::shutdown(&link.file, rustix::net::Shutdown::Write)
            {
                tracing::debug!(%error, "a connection is not half-closed");
                link.end();
            }
            changed.await;
            continue;
        };
        let result = if let Either::Left((result, _)) = select(first, changed).await {
            sends.pop_front();
            result
        } else {
            continue;
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection takes no more");
            link.end();
            // The host's requests were for another connection.
            while !link.over.get() {
                link.ready.after(link.ready.seen()).await;
            }
        }
    }
}

/// Hands on what there is to write, as long as there is room.
async fn write_all(
    shared: &Rc<Shared>,
    link: &Rc<Link>,
    packing: &mut Option<Packing>,
    sends: &mut VecDeque<Sent>,
) -> Result<(), ()> {
    while sends.len() < DEPTH && !link.over.get() {
        let write = shared.host().next_write(link.id);
        let Some(write) = write else { break };
        let (len, sent) = match write.body {
            Body::Message(message) => {
                let buffer = payload(shared, message).await;
                let len = buffer.len();
                if len <= SHORT && pack(shared, link, packing, sends, &write.header, &buffer)? {
                    let tally = Tally { copied: (HEADER_LEN + len) as u64, ..Tally::default() };
                    give_back(shared, message, buffer, tally);
                    written(shared, link, len, true);
                    continue;
                }
                flush(shared, link, packing, sends)?;
                link.next_is(false);
                (len, lend(shared, link, &write.header, message, buffer))
            }
            Body::Empty => {
                flush(shared, link, packing, sends)?;
                (0, control(link, &write.header, Vec::new()))
            }
            Body::Map(map) => {
                flush(shared, link, packing, sends)?;
                let map = map_buffer(&map);
                (MAP_LEN, map.and_then(|map| control(link, &write.header, map)))
            }
        };
        sends.push_back(sent.ok_or(())?);
        written(shared, link, len, false);
    }
    flush(shared, link, packing, sends)
}

fn written(shared: &Shared, link: &Link, len: usize, copied: bool) {
    link.written.set(link.written.get() + (HEADER_LEN + len) as u64);
    shared.clock.quicken(copied && !link.is_told());
}

/// Whether the frame goes together with others.
fn pack(
    shared: &Shared,
    link: &Link,
    packing: &mut Option<Packing>,
    sends: &mut VecDeque<Sent>,
    header: &[u8],
    payload: &[u8],
) -> Result<bool, ()> {
    let Some(open) = packing else { return Ok(false) };
    if open.add(header, payload) {
        return Ok(true);
    }
    flush(shared, link, packing, sends)?;
    Ok(packing.as_mut().is_some_and(|open| open.add(header, payload)))
}

fn flush(
    shared: &Shared,
    link: &Link,
    packing: &mut Option<Packing>,
    sends: &mut VecDeque<Sent>,
) -> Result<(), ()> {
    let Some(packing) = packing else { return Ok(()) };
    sends.extend(packing.send(shared, link)?);
    Ok(())
}

fn map_buffer(map: &CongestionMap) -> Option<Vec<Buffer>> {
    let mut buffer = Region::anonymous(MAP_LEN).ok()?.take(MAP_LEN)?;
    buffer.copy_from_slice(map.as_bytes());
    Some(vec![buffer])
}

/// Sends a frame whose return nobody waits for.
fn control(link: &Link, header: &[u8], body: Vec<Buffer>) -> Option<Sent> {
    let sending = link.socket.message(body).header(header).send().ok()?;
    Some(sending.split().0)
}

/// A message's payload, which may still be on its way back from a connection that has ended.
async fn payload(shared: &Shared, message: MessageId) -> Buffer {
    let slot: Slot = shared.seen().payload(message).expect("is lent").clone();
    loop {
        let seen = shared.news.seen();
        let buffer = slot.borrow_mut().take();
        match buffer {
            Some(buffer) => return buffer,
            None => shared.news.after(seen).await,
        }
    }
}

/// The kernel has let go of a message's payload.
fn give_back(shared: &Shared, message: MessageId, buffer: Buffer, tally: Tally) {
    let slot: Slot = shared.seen().payload(message).expect("is lent").clone();
    slot.replace(Some(buffer));
    shared.host().released(message, tally);
    // It was cancelled meanwhile, and is complete.
    if shared.seen().payload(message).is_none() {
        shared.news.tell();
    }
}

/// Sends a message by itself.
fn lend(
    shared: &Rc<Shared>,
    link: &Rc<Link>,
    header: &[u8],
    message: MessageId,
    buffer: Buffer,
) -> Option<Sent> {
    match link.socket.message(buffer).header(header).send() {
        Ok(sending) => {
            let (sent, loan) = sending.split();
            let (shared, link) = (shared.clone(), link.clone());
            shared.clone().spawn(async move {
                // Without its driver the engine has ended.
                let Ok(returned) = loan.await else { return };
                give_back(&shared, message, returned.buffer, returned.receipt.tally);
                shared.look(&link);
                shared.tell();
            });
            Some(sent)
        }
        Err(refused) => {
            give_back(shared, message, refused.buffer, Tally::default());
            None
        }
    }
}
