//! The end of a server; each of its connections asks for it at every poll.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Default)]
pub(crate) struct Stops {
    stopped: Cell<bool>,
    made: Cell<u64>,
    /// Wakers of the tasks that wait for it, by number.
    waiting: RefCell<BTreeMap<u64, Waker>>,
}

impl Stops {
    /// Announces the end.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        for waker in self.waiting.take().into_values() {
            waker.wake();
        }
    }

    /// Ready at the end.
    pub(crate) fn told(self: &Rc<Self>) -> Stopped {
        self.made.update(|made| made + 1);
        Stopped { stops: Rc::clone(self), number: self.made.get(), waits: None }
    }
}

/// A future of that end.
pub(crate) struct Stopped {
    stops: Rc<Stops>,
    number: u64,
    /// The task's number among those that wait.
    waits: Option<Waker>,
}

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.stops.stopped.get() {
            return Poll::Ready(());
        }
        if !this.waits.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            this.waits = Some(context.waker().clone());
            let before =
                this.stops.waiting.borrow_mut().insert(this.number, context.waker().clone());
            drop(before);
        }
        Poll::Pending
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let waker = self.stops.waiting.borrow_mut().remove(&self.number);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn whoever_waits_is_woken_once_by_the_task_that_polled_last() {
        let stops = Rc::<Stops>::default();
        let tasks = [Arc::<Counter>::default(), Arc::default(), Arc::default()];
        let wakers = tasks.clone().map(Waker::from);
        let (mut one, mut other, mut gone) = (stops.told(), stops.told(), stops.told());
        let poll = |stopped: &mut Stopped, waker: &Waker| {
            Pin::new(stopped).poll(&mut Context::from_waker(waker)).is_ready()
        };
        for _ in 0..3 {
            assert!(!poll(&mut one, &wakers[0]));
        }
        assert!(!poll(&mut other, &wakers[0]));
        assert!(!poll(&mut other, &wakers[1]));
        assert!(!poll(&mut gone, &wakers[2]));
        drop(gone);
        stops.stop();
        assert_eq!(tasks.each_ref().map(|task| task.0.load(SeqCst)), [1, 1, 0]);
        assert!(poll(&mut one, &wakers[0]) && poll(&mut stops.told(), &wakers[2]));
    }
}
