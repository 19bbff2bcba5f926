//! The meter, one test after the other, and what it has counted.

use std::sync::{Mutex, MutexGuard};

use handoff_meter::{Meter, Options, Report, Scope, Totals};

/// Bytes that each program moves, and the size of its pieces.
pub(crate) const SIZE: usize = 16 << 20;
pub(crate) const PIECE: usize = 32 << 10;
/// A file system whose files are memory.
pub(crate) const TMPFS: &str = "/dev/shm";
pub(crate) const EXT4: &str = "/var/tmp";

pub(crate) static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct Counting {
    meter: Meter,
    _turn: MutexGuard<'static, ()>,
}

impl Counting {
    /// Counts what `program` makes this process and its descendants copy.
    pub(crate) fn during(&self, program: impl FnOnce()) -> Totals {
        let before = self.meter.totals().expect("counters");
        program();
        self.meter.totals().expect("counters").since(before)
    }

    pub(crate) fn report(&self) -> Report {
        self.meter.read().expect("counters")
    }
}

pub(crate) fn attach(scope: Scope) -> Result<Counting, String> {
    attach_with(Options { scope, paths: true, libc: false })
}

pub(crate) fn attach_with(options: Options) -> Result<Counting, String> {
    // A failed test leaves nothing behind that could mislead the next.
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let meter = Meter::attach_with(options).map_err(|unavailable| unavailable.to_string())?;
    Ok(Counting { meter, _turn: turn })
}

macro_rules! counting {
    ($scope:expr) => {
        match $crate::counting::attach($scope) {
            Ok(counting) => counting,
            Err(reason) => handoff_testbed::skip!("{reason}"),
        }
    };
}
pub(crate) use counting;

pub(crate) fn myself() -> Scope {
    Scope::Tree(std::process::id())
}

#[track_caller]
pub(crate) fn assert_near(what: &str, bytes: u64, expected: usize) {
    let expected = expected as u64;
    assert!(
        bytes.abs_diff(expected) <= SIZE as u64 / 100,
        "{what}: {bytes} bytes, expected {expected}"
    );
}

pub(crate) fn place<'a>(report: &'a Report, function: &str) -> &'a handoff_meter::Place {
    let found = report.places.iter().find(|place| place.function == function);
    found.unwrap_or_else(|| panic!("nothing by {function}: {:?}", report.places))
}
