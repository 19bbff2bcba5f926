//! Copies short messages that wait together into one send: that costs less than a send for each.

use std::cell::RefCell;
use std::rc::Rc;

use handoff::{Buffer, Region, Sent};

use super::engine::Shared;
use super::link::Link;

/// The longest payload that is copied.
pub(super) const SHORT: usize = 4096;
/// Bytes of a send.
const PACK: usize = 64 << 10;
/// The most sends of a connection under way.
const PACKS: usize = 4;

/// The packs of one connection.
pub(super) struct Packing {
    free: Rc<RefCell<Vec<Buffer>>>,
    open: Option<Buffer>,
    mapped: bool,
}

impl Packing {
    /// For an engine that sends this way: none if the user wants everything lent.
    pub(super) fn new(sending: handoff::Engine) -> Option<Self> {
        let copies = matches!(sending, handoff::Engine::Auto | handoff::Engine::Copy);
        copies.then(|| Self { free: Rc::default(), open: None, mapped: false })
    }

    /// Copies a frame, if there is room for it before the next [`Packing::send`].
    pub(super) fn add(&mut self, header: &[u8], payload: &[u8]) -> bool {
        if self.open.is_none() {
            self.open = self.next();
        }
        let Some(open) = &mut self.open else { return false };
        let (begin, middle) = (open.len(), open.len() + header.len());
        let end = middle + payload.len();
        if end > open.capacity() {
            return false;
        }
        open.set_len(end);
        open[begin..middle].copy_from_slice(header);
        open[middle..].copy_from_slice(payload);
        true
    }

    fn next(&mut self) -> Option<Buffer> {
        if !self.mapped {
            self.mapped = true;
            // Without memory each message is sent by itself.
            let mut region = Region::anonymous(PACKS * PACK).ok()?;
            self.free.borrow_mut().extend((0..PACKS).map_while(|_| region.take(PACK)));
        }
        let mut buffer = self.free.borrow_mut().pop()?;
        buffer.set_len(0);
        Some(buffer)
    }

    /// Sends what was added, if anything; the error only says that it failed.
    pub(super) fn send(&mut self, shared: &Shared, link: &Link) -> Result<Option<Sent>, ()> {
        let Some(buffer) = self.open.take() else { return Ok(None) };
        link.next_is(true);
        match link.socket.message(buffer).send() {
            Ok(sending) => {
                let (sent, loan) = sending.split();
                let free = self.free.clone();
                shared.spawn(async move {
                    if let Ok(returned) = loan.await {
                        free.borrow_mut().push(returned.buffer);
                    }
                });
                Ok(Some(sent))
            }
            Err(refused) => {
                self.free.borrow_mut().push(refused.buffer);
                Err(())
            }
        }
    }
}
