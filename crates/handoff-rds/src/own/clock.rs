//! Time: the host's deadlines, and acknowledgements, for which TCP has no event.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use handoff::{Driver, File};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::changes::Changes;
use super::engine::Shared;
use crate::error::{Error, Result};

/// Time between two looks for acknowledgements; it doubles, up to the second value, while there are none.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));
/// Time to the first look after frames were copied. For lent pages the kernel reports when it lets go, and
/// then there is something to see; for copied ones it reports nothing.
const FIRST_LOOK: Duration = Duration::from_micros(100);

pub(super) struct Clock {
    timer: File,
    /// The host may have another deadline, or wait for acknowledgements.
    pub(super) changed: Changes,
    /// Time to the next look.
    pause: Cell<Duration>,
}

impl Clock {
    pub(super) fn new(driver: &Driver) -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| Error::io("make a timer")(errno.into()))?;
        let timer = driver.file(timer).map_err(|error| Error::NotPossible(error.to_string()))?;
        Ok(Self { timer, changed: Changes::default(), pause: Cell::new(LOOKS.0) })
    }

    /// Something on its way will soon be acknowledged.
    pub(super) fn quicken(&self, copied: bool) {
        let pause = if copied { FIRST_LOOK } else { LOOKS.0 };
        if self.pause.get() > pause {
            self.pause.set(pause);
            self.changed.tell();
        }
    }

    fn set(&self, left: Duration) -> Result<()> {
        // A time of zero would switch the timer off.
        let left = left.max(Duration::from_micros(1));
        let it_value =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
            .map_err(|errno| Error::io("set a timer")(errno.into()))?;
        Ok(())
    }
}

pub(super) async fn run(shared: Rc<Shared>) {
    if let Err(error) = tick(&shared).await {
        shared.fail(error);
    }
}

async fn tick(shared: &Rc<Shared>) -> Result<()> {
    let clock = &shared.clock;
    let failed = |error: handoff::Error| Error::NotPossible(error.to_string());
    let mut readable = clock.timer.readable().map_err(failed)?;
    let mut armed: Option<Instant> = None;
    loop {
        let seen = clock.changed.seen();
        let deadline = next(shared);
        if let Some(deadline) = deadline
            && armed.is_none_or(|armed| deadline < armed)
        {
            clock.set(deadline.saturating_duration_since(Instant::now()))?;
            armed = Some(deadline);
        }
        let changed = pin!(clock.changed.after(seen));
        match select(&mut readable, changed).await {
            Either::Right(_) => continue,
            Either::Left((waited, _)) => waited.map_err(failed)?,
        }
        armed = None;
        // EAGAIN: the timer was set anew meanwhile.
        let _ = rustix::io::read(&clock.timer, &mut [0; 8]);
        readable = clock.timer.readable().map_err(failed)?;
        look(shared);
        shared.tell();
    }
}

/// When there is something to do.
fn next(shared: &Rc<Shared>) -> Option<Instant> {
    let deadline = shared.seen().deadline().map(|at| shared.begin() + at);
    let links = shared.links.borrow();
    let waits = links.values().any(|link| link.acknowledged.get() < link.written.get());
    let look = waits.then(|| Instant::now() + shared.clock.pause.get());
    deadline.into_iter().chain(look).chain(shared.refusals.deadline()).min()
}

fn look(shared: &Rc<Shared>) {
    let links: Vec<_> = shared.links.borrow().values().cloned().collect();
    let mut news = false;
    for link in links {
        news |= shared.look(&link);
    }
    let pause = if news { LOOKS.0 } else { (shared.clock.pause.get() * 2).min(LOOKS.1) };
    shared.clock.pause.set(pause);
    shared.refusals.tell(Instant::now());
    shared.advance();
}
