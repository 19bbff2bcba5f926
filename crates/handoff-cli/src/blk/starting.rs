//! How far a mirror is whose legs are compared or made equal, while its start waits for that.

use std::time::{Duration, Instant};

use handoff_command::progress::{self, set_total};
use handoff_command::{Context, service};

/// How often somebody is told.
const PAUSE: Duration = Duration::from_millis(200);

/// Says whether it is time to tell somebody.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last: Option<Instant>,
}

impl Pace {
    pub(super) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= PAUSE);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

/// A bar on the terminal, and the state of a unit of systemd.
pub(super) fn bar(context: &Context) -> impl FnMut(u64, u64) + use<> {
    let quiet = context.json;
    let (mut bar, mut pace) = (None, Pace::default());
    move |done, all| {
        let bar = bar.get_or_insert_with(|| progress::bytes(None, quiet));
        set_total(bar, all);
        bar.set_position(done);
        if pace.is_due() {
            service::starting(&format!("{done} bytes of {all} are the same on all legs"));
        }
        if done == all {
            bar.finish_and_clear();
        }
    }
}
