//! Where connections go on to: addresses that are fixed, or those that a name has by then.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use handoff::Driver;
use handoff_net::address::Endpoint;
use handoff_net::listening::{Goal, Target};
use handoff_net::reach::{Family, look_up};

/// The target of a thread's connections.
pub(super) struct Targets {
    /// `None` if the addresses are fixed.
    name: Option<(Endpoint, Family)>,
    /// The last ones that were found.
    known: RefCell<Rc<[Target]>>,
    /// The question under way, which connections share that come meanwhile.
    asking: RefCell<Option<Arc<Question>>>,
}

/// A question to the system, which a thread of its own waits for.
#[derive(Default)]
struct Question(Mutex<State>);

#[derive(Default)]
struct State {
    answer: Option<Result<Vec<SocketAddr>, String>>,
    waiting: Vec<Waker>,
}

impl Question {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(endpoint: Endpoint, family: Family) -> Arc<Self> {
        let question = Arc::new(Self::default());
        let asked = Arc::clone(&question);
        let ask = move || {
            let answer = look_up(&endpoint, family);
            let waiting = {
                let mut state = asked.state();
                state.answer = Some(answer);
                std::mem::take(&mut state.waiting)
            };
            waiting.into_iter().for_each(Waker::wake);
        };
        let started = std::thread::Builder::new().name("resolver".to_owned()).spawn(ask);
        if let Err(error) = started {
            question.state().answer = Some(Err(format!("starting a thread: {error}")));
        }
        question
    }

    async fn answer(&self) -> Result<Vec<SocketAddr>, String> {
        poll_fn(|context| {
            let mut state = self.state();
            match &state.answer {
                Some(answer) => Poll::Ready(answer.clone()),
                None => {
                    state.waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Targets {
    /// `found` are the addresses that it has now.
    pub(super) fn new(goal: &Goal, family: Family, found: Vec<Target>) -> Self {
        let name = match goal {
            Goal::Tcp(endpoint) if endpoint.host.parse::<IpAddr>().is_err() => {
                Some((endpoint.clone(), family))
            }
            Goal::Tcp(_) | Goal::Unix(_) => None,
        };
        Self { name, known: RefCell::new(found.into()), asking: RefCell::default() }
    }

    /// The addresses to try, in this order. Those that were known before if the system does not tell within this time, and
    /// why it did not.
    pub(super) async fn find(
        &self,
        driver: &Driver,
        time: Duration,
    ) -> (Rc<[Target]>, Option<String>) {
        let Some((endpoint, family)) = &self.name else {
            return (Rc::clone(&self.known.borrow()), None);
        };
        let question = {
            let mut asking = self.asking.borrow_mut();
            // An answer that came too late for those who had asked is an old one.
            asking.take_if(|question| question.state().answer.is_some());
            Arc::clone(asking.get_or_insert_with(|| Question::ask(endpoint.clone(), *family)))
        };
        let answer = driver.timeout(time, question.answer()).await;
        let failure = match answer {
            Ok(answer) => {
                // Who comes from here on asks anew.
                self.asking.borrow_mut().take_if(|asking| Arc::ptr_eq(asking, &question));
                match answer {
                    Ok(found) => {
                        *self.known.borrow_mut() = found.into_iter().map(Target::Tcp).collect();
                        None
                    }
                    Err(why) => Some(why),
                }
            }
            // The next connection waits for the same answer.
            Err(_) => Some(format!("finding the address of \"{}\" takes too long", endpoint.host)),
        };
        (Rc::clone(&self.known.borrow()), failure)
    }
}
