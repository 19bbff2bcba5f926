//! Pieces from a supply to the sink of a route, each given on while others are on their way.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use super::delivery::{Given, Giving};
use super::supply::Supply;
use super::{PIECES, Route};
use crate::error::{Error, Result};
use crate::sleep::Sleep;

impl Route {
    /// Hands on what there is, as pieces come back; ends when all are back.
    pub(super) async fn carry<S: Supply>(&mut self, supply: &mut S) -> Result<()> {
        let mut out: VecDeque<Giving<S::Piece>> = VecDeque::new();
        let mut ended = None;
        // A piece for which the driver had no room.
        let mut kept = None;
        let mut pause: Option<Sleep> = None;
        let most = if self.sink.takes_one_at_a_time() { 1 } else { PIECES };
        let driver = &self.driver;
        let taken = &mut self.taken;
        let supply = Counting { what: supply, count: |supply| *taken += supply.taken() };
        poll_fn(|context| {
            // Without a ring pieces come and go at once; the thread's other futures get their turn all the
            // same.
            for _ in 0..PIECES {
                while let Some(first) = out.front_mut()
                    && let Poll::Ready(given) = first.poll(context)
                {
                    out.pop_front();
                    let result = given.and_then(|Given { piece, bytes, tally, result }| {
                        self.moved.update(|moved| moved + bytes as u64);
                        self.given += tally;
                        supply.what.put_back(piece);
                        result
                    });
                    // The end of the source is no success while the sink may fail.
                    if !matches!(ended, Some(Err(_)))
                        && let Err(error) = result
                    {
                        ended = Some(Err(error));
                    }
                }
                match &mut ended {
                    Some(_) if !out.is_empty() => return Poll::Pending,
                    Some(_) => return Poll::Ready(ended.take().expect("was just looked at")),
                    None if out.len() >= most => return Poll::Pending,
                    None => {}
                }
                if let Some(waiting) = &mut pause {
                    let Poll::Ready(waited) = Pin::new(waiting).poll(context) else {
                        return Poll::Pending;
                    };
                    pause = None;
                    if let Err(error) = waited {
                        ended = Some(Err(error));
                        continue;
                    }
                }
                let next = match kept.take() {
                    Some(piece) => Poll::Ready(Some(Ok(piece))),
                    None => supply.what.poll_next(context),
                };
                let started = match next {
                    Poll::Ready(Some(Ok(piece))) => {
                        let lent: usize = out.iter().map(Giving::bytes).sum();
                        let position = self.moved.get() + lent as u64;
                        let started = Giving::start(&self.sink, piece, position);
                        started.map(|giving| out.push_back(giving)).map_err(|refused| {
                            kept = Some(refused.buffer);
                            refused.error
                        })
                    }
                    Poll::Ready(Some(Err(error))) => Err(error),
                    Poll::Ready(None) => {
                        ended = Some(Ok(()));
                        Ok(())
                    }
                    Poll::Pending => return Poll::Pending,
                };
                match started {
                    Ok(()) => {}
                    // One that is back makes room.
                    Err(Error::Busy { .. }) if !out.is_empty() => return Poll::Pending,
                    Err(Error::Busy { .. }) if !S::KEEPS_ROOM || self.sink.is_sending() => {
                        pause = Some(Sleep::for_room(driver));
                    }
                    Err(error) => ended = Some(Err(error)),
                }
            }
            // Also for callers that poll after each turn and have no waker: the next turn does not sleep.
            driver.core.news.set(true);
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// A supply, or something else that counts or must be put back: this does it when the supply has served,
/// also if its future is dropped midway.
pub(super) struct Counting<T, F: FnMut(&mut T)> {
    pub(super) what: T,
    pub(super) count: F,
}

impl<T, F: FnMut(&mut T)> Drop for Counting<T, F> {
    fn drop(&mut self) {
        (self.count)(&mut self.what);
    }
}
