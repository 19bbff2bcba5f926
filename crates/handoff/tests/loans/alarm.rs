//! Wakers that note their call, and do what wakers and visitors may do: panic, send, turn the driver, drop
//! handles.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::time::Duration;

use handoff::{Buffer, Driver, Sending, Socket, Wait};

/// What else a waker or visitor does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whim {
    Nothing,
    Panic,
    Send,
    Turn,
    DropHandles,
}

impl Whim {
    pub(crate) fn act(self) {
        match self {
            Whim::Nothing => {}
            Whim::Panic => panic!("{ON_PURPOSE}"),
            Whim::Send => {
                let socket = AT_HAND.with_borrow(|at_hand| at_hand.socket.clone());
                let sending = socket.and_then(|it| it.send(Buffer::from(vec![0; 3000])).ok());
                AT_HAND.with_borrow_mut(|at_hand| at_hand.sent.extend(sending));
            }
            Whim::Turn => {
                let driver = AT_HAND.with_borrow(|at_hand| at_hand.driver.clone());
                if let Some(driver) = driver {
                    driver.turn(Wait::No).expect("turns");
                    driver.turn(Wait::AtMost(Duration::from_micros(200))).expect("turns");
                }
            }
            Whim::DropHandles => {
                let victims =
                    AT_HAND.with_borrow_mut(|at_hand| std::mem::take(&mut at_hand.victims));
                drop(victims);
            }
        }
    }
}

/// The panic message of a waker.
const ON_PURPOSE: &str = "a waker panics, as the test wants it";

/// Objects that wakers can use.
#[derive(Default)]
pub(crate) struct AtHand {
    pub(crate) driver: Option<Driver>,
    /// A datagram socket that is connected.
    pub(crate) socket: Option<Socket>,
    /// What a waker may drop.
    pub(crate) victims: Vec<Box<dyn Any>>,
    /// What wakers have sent.
    pub(crate) sent: Vec<Sending<Buffer>>,
}

thread_local! {
    pub(crate) static AT_HAND: RefCell<AtHand> = RefCell::default();
}

pub(crate) struct Alarm {
    woken: AtomicUsize,
    whim: Whim,
}

impl Alarm {
    pub(crate) fn new(whim: Whim) -> Arc<Self> {
        Arc::new(Self { woken: AtomicUsize::new(0), whim })
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// Waiters for finished operations have been told by now.
    pub(crate) fn check(&self) {
        assert!(self.woken.load(Relaxed) > 0, "something was over, and nobody was woken");
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Relaxed);
        self.whim.act();
    }
}

/// Runs something in which wakers may panic; `None` if one did.
pub(crate) fn guarded<T>(act: impl FnOnce() -> T) -> Option<T> {
    match panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(value) => Some(value),
        Err(panic) if is_on_purpose(&*panic) => None,
        Err(panic) => panic::resume_unwind(panic),
    }
}

fn is_on_purpose(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<&str>() == Some(&ON_PURPOSE)
        || panic.downcast_ref::<String>().is_some_and(|text| text == ON_PURPOSE)
}

/// Silences the panics of wakers.
pub(crate) fn silence() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload_as_str() != Some(ON_PURPOSE) {
                others(info);
            }
        }));
    });
}
