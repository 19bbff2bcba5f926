//! Breaks between the steps of a route.

use futures_lite::future::yield_now;

use crate::reactor::Reactor;

/// Lets the thread's other futures have their turn. Also for callers that poll after each turn and have no waker: the
/// next turn does not sleep.
pub(super) async fn let_others_run(driver: &Reactor) {
    driver.core.news.set(true);
    yield_now().await;
}
