//! What is written to a connection: frames in order, payloads from where they are.

use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use handoff::{Buffer, Region, Sent, Tally};

use super::engine::{Shared, Slot};
use super::link::Link;
use crate::protocol::{Body, MessageId};
use crate::wire::{CongestionMap, HEADER_LEN, MAP_LEN};

/// Frames handed to the library of which the kernel has not taken all bytes.
const DEPTH: usize = 64;

/// Writes until the connection ends.
pub(super) async fn run(shared: Rc<Shared>, link: Rc<Link>) {
    let mut sends: VecDeque<Sent> = VecDeque::new();
    while !link.over.get() {
        let ready = link.ready.seen();
        while sends.len() < DEPTH && !link.over.get() {
            let write = shared.host().next_write(link.id);
            let Some(write) = write else { break };
            let (len, sent) = match write.body {
                Body::Empty => (0, control(&link, &write.header, Vec::new())),
                Body::Map(map) => {
                    (MAP_LEN, map_buffer(&map).and_then(|map| control(&link, &write.header, map)))
                }
                Body::Message(message) => lend(&shared, &link, &write.header, message).await,
            };
            let Some(sent) = sent else {
                // The reader takes in what has arrived, and ends it.
                link.end();
                break;
            };
            sends.push_back(sent);
            link.written.set(link.written.get() + (HEADER_LEN + len) as u64);
            shared.clock.quicken();
        }
        shared.settle();
        let changed = pin!(link.ready.after(ready));
        let Some(first) = sends.front_mut() else {
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
            // What it was asked to write, it was asked of another.
            while !link.over.get() {
                link.ready.after(link.ready.seen()).await;
            }
        }
    }
}

fn map_buffer(map: &CongestionMap) -> Option<Vec<Buffer>> {
    let mut buffer = Region::anonymous(MAP_LEN).ok()?.take(MAP_LEN)?;
    buffer.copy_from_slice(map.as_bytes());
    Some(vec![buffer])
}

/// Sends a frame that nobody waits for the return of.
fn control(link: &Link, header: &[u8], body: Vec<Buffer>) -> Option<Sent> {
    let sending = link.socket.message(body).header(header).send().ok()?;
    Some(sending.split().0)
}

/// Sends a message. Its payload may still be on its way back from a connection that has ended.
async fn lend(
    shared: &Rc<Shared>,
    link: &Rc<Link>,
    header: &[u8],
    message: MessageId,
) -> (usize, Option<Sent>) {
    let slot: Slot = shared.seen().payload(message).expect("is lent").clone();
    let buffer = loop {
        let seen = shared.news.seen();
        let buffer = slot.borrow_mut().take();
        match buffer {
            Some(buffer) => break buffer,
            None => shared.news.after(seen).await,
        }
    };
    let len = buffer.len();
    match link.socket.message(buffer).header(header).send() {
        Ok(sending) => {
            let (sent, loan) = sending.split();
            let (shared, link) = (shared.clone(), link.clone());
            shared.clone().spawn(async move {
                let returned = loan.await;
                slot.replace(Some(returned.buffer));
                shared.host().released(message, returned.receipt.tally);
                shared.look(&link);
                shared.tell();
            });
            (len, Some(sent))
        }
        Err(refused) => {
            slot.replace(Some(refused.buffer));
            shared.host().released(message, Tally::default());
            (len, None)
        }
    }
}
