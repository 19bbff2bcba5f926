//! Sessions of clients: a newer turn ends the older ones, with their requests.
//!
//! Contracts:
//! - when a turn is let in, nothing of an older one is under way, on any thread, and nothing of one begins any more;
//! - connections of one turn live side by side.
//!
//! A token is known for as long as one of its connections is open, and afterwards until many others have come.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use handoff_nbd::wire::Session;

use crate::ending::{End, Ending};

/// Tokens that are remembered without a connection.
const REMEMBERED: usize = 4096;

/// The sessions of all threads: clones know the same.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<Known>);

#[derive(Debug)]
struct Known {
    instance: u128,
    numbers: AtomicU64,
    tokens: Mutex<HashMap<u128, Token>>,
}

#[derive(Debug, Default)]
struct Token {
    /// The newest that came.
    turn: u64,
    /// When that was, by count.
    used: u64,
    connections: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    number: u64,
    turn: u64,
    ending: Arc<Ending>,
}

impl Sessions {
    /// None so far. `instance` tells clients which server this is: a number at random.
    pub fn new(instance: u128) -> Self {
        Self(Arc::new(Known {
            instance,
            numbers: AtomicU64::new(0),
            tokens: Mutex::new(HashMap::new()),
        }))
    }

    pub(crate) fn instance(&self) -> u128 {
        self.0.instance
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<u128, Token>> {
        self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection of a session in when all older ones are over; `None` if it is itself older than one that came.
    pub(crate) async fn enter(&self, session: Session, ending: &Arc<Ending>) -> Option<Entered> {
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed);
        let (entered, older) = {
            let mut tokens = self.tokens();
            if tokens.len() >= REMEMBERED && !tokens.contains_key(&session.token) {
                let unused = tokens.iter().filter(|(_, token)| token.connections.is_empty());
                let oldest = unused.min_by_key(|(_, token)| token.used).map(|(token, _)| *token);
                oldest.map(|oldest| tokens.remove(&oldest));
            }
            let token = tokens.entry(session.token).or_default();
            if session.turn < token.turn {
                return None;
            }
            (token.turn, token.used) = (session.turn, number);
            // Those that are ending already are waited for, too.
            let older = token.connections.iter().filter(|it| it.turn < session.turn);
            let older: Vec<_> = older.map(|it| Arc::clone(&it.ending)).collect();
            let (turn, ending) = (session.turn, Arc::clone(ending));
            token.connections.push(Member { number, turn, ending });
            (Entered { sessions: self.clone(), token: session.token, number }, older)
        };
        older.iter().for_each(|ending| ending.tell(End::Replaced));
        for ending in older {
            ending.finished().await;
        }
        // A newer one may have come meanwhile.
        (ending.is_told() != Some(End::Replaced)).then_some(entered)
    }
}

/// A connection of a session; dropped when it is over.
#[derive(Debug)]
pub(crate) struct Entered {
    sessions: Sessions,
    token: u128,
    number: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(token) = self.sessions.tokens().get_mut(&self.token) {
            token.connections.retain(|it| it.number != self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_newer_turn_waits_for_the_end_of_the_older() {
        let sessions = Sessions::new(1);
        let at = |turn| Session { token: 7, turn };
        let endings = [(); 4].map(|()| Arc::<Ending>::default());
        let enter = |turn, which: usize| sessions.enter(at(turn), &endings[which]);
        let first = enter(1, 0).now_or_never().expect("at once").expect("is let in");
        let _beside = enter(1, 1).now_or_never().expect("at once").expect("is let in");
        let mut newer = pin!(enter(2, 2));
        let mut context = Context::from_waker(Waker::noop());
        assert!(newer.as_mut().poll(&mut context).is_pending());
        assert_eq!(endings[0].is_told(), Some(End::Replaced));
        assert!(enter(1, 3).now_or_never().expect("at once").is_none(), "is older");
        // One more connection of the new turn waits as well.
        let mut twin = pin!(enter(2, 3));
        assert!(twin.as_mut().poll(&mut context).is_pending());
        endings[0].finish();
        drop(first);
        assert!(newer.as_mut().poll(&mut context).is_pending(), "the other is under way");
        endings[1].finish();
        assert!(newer.as_mut().now_or_never().expect("is over").is_some());
        assert!(twin.as_mut().now_or_never().expect("is over").is_some());
    }
}
