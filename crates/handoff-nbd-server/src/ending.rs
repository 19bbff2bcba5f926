//! How a connection is told to end, by its server or by another thread.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Why it is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server stops: requests that have come are answered.
    Stop,
    /// Its client has begun anew: nothing is answered any more.
    Replaced,
}

/// What those see who end a connection.
#[derive(Debug, Default)]
pub(crate) struct Ending(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: Option<End>,
    over: bool,
    /// The connection, which waits to be told.
    connection: Option<Waker>,
    /// Whoever waits for its end.
    waits: Vec<Waker>,
}

impl Ending {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the connection. A replaced one stays so.
    pub(crate) fn tell(&self, end: End) {
        let waker = {
            let mut state = self.state();
            if state.told != Some(End::Replaced) {
                state.told = Some(end);
            }
            state.connection.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// What the connection was told.
    pub(crate) fn is_told(&self) -> Option<End> {
        self.state().told
    }

    /// Waits until it is told something else than `known`.
    pub(crate) async fn told(&self, known: Option<End>) -> End {
        poll_fn(|context| {
            let mut state = self.state();
            match state.told {
                Some(end) if state.told != known => Poll::Ready(end),
                _ => {
                    state.connection = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The connection and all its requests are over.
    pub(crate) fn finish(&self) {
        let waits = {
            let mut state = self.state();
            state.over = true;
            std::mem::take(&mut state.waits)
        };
        waits.into_iter().for_each(Waker::wake);
    }

    /// Waits until they are.
    pub(crate) async fn finished(&self) {
        poll_fn(|context| {
            let mut state = self.state();
            if state.over {
                return Poll::Ready(());
            }
            if !state.waits.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waits.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
