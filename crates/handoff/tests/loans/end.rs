//! The end of a case: all operations end, and their results are checked.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use handoff::{Pool, Wait, Window};

use crate::alarm::{AT_HAND, guarded};
use crate::inflow::Inflow;
use crate::lanes::Bulk;
use crate::model::{Circumstances, check_stream};
use crate::steps::Step;
use crate::traffic::patience;
use crate::transfers::Files;
use crate::world::World;

const STEP: Duration = Duration::from_millis(2);

/// For the end of a stream that nobody holds.
const LONG: Duration = Duration::from_secs(30);

/// Waits for an end, with time that is counted by steps: what one takes longer, the machine was busy.
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(patience(Duration::from_secs(3)))
    }

    /// Whether it is over after a step that began then.
    pub(crate) fn is_over(&mut self, begun: Instant) -> bool {
        self.0 = self.0.saturating_sub(begun.elapsed().min(STEP));
        self.0.is_zero()
    }
}

impl World {
    /// Lets all operations end, and checks their results.
    pub(crate) fn finish(mut self) {
        let mut patience = Patience::new();
        self.flush(false);
        let victims = AT_HAND.with_borrow_mut(|at_hand| std::mem::take(&mut at_hand.victims));
        for victim in victims {
            guarded(|| drop(victim));
        }
        if let Some(files) = &mut self.files {
            files.end_feed();
        }
        while !self.is_gone() && !self.is_over() {
            let begun = Instant::now();
            self.turn(STEP);
            self.let_go_on();
            assert!(!patience.is_over(begun), "this does not end: {}", self.left());
        }
        self.take_what_is_there();
        self.check_in_flight();
        self.take_datagrams();
        // Dropped or forgotten sends end like any others.
        let quiet = !self.is_gone() && self.forgotten.is_empty();
        if !quiet && !self.is_gone() {
            // Some of the forgotten may be under way, and the driver waits a moment only. What a peer does not read comes
            // back when the peer goes.
            for number in 0..self.outflows.len() {
                self.act(&Step::PeerCloses(number));
            }
        }
        self.leave();
        for number in 0..self.outflows.len() {
            if let (true, Some(far)) = (quiet, &self.outflows[number].far) {
                // Its handles are gone: what is still on its way comes before the end.
                far.set_nonblocking(false).expect("is a socket");
                far.set_read_timeout(Some(LONG)).expect("is a socket");
            }
            while self.peer_reads(number, usize::MAX) {}
            let outflow = &self.outflows[number];
            let circumstances =
                Circumstances { driver_gone: !quiet, peer_gone: outflow.closed, complete: quiet };
            let messages = outflow.messages.iter().map(|id| &self.messages[*id]);
            check_stream(messages, &outflow.got, circumstances);
        }
        self.check_memory();
    }

    fn left(&self) -> String {
        let through: Vec<_> = self.inflows.iter().map(Inflow::is_through).collect();
        let lanes: Vec<_> = self.lanes.iter().map(Bulk::is_empty).collect();
        format!(
            "{:?}, {:?}, received: {through:?}, lanes are empty: {lanes:?}",
            self.handles, self.driver
        )
    }

    /// Whether no more results can come for what is held.
    fn is_over(&self) -> bool {
        // Forgotten spans may leave no chunk to receive into.
        let received = self.inflows.iter().all(Inflow::is_through) || !self.forgotten.is_empty();
        self.handles.is_empty()
            && self.lanes.iter().all(Bulk::is_empty)
            && received
            && self.driver.as_ref().is_none_or(|it| it.in_flight() <= self.held_for_good())
    }

    /// Operations that handles keep: of receivers, and of forgotten handles.
    fn held_for_good(&self) -> usize {
        let receiving = self.inflows.iter().filter(|it| it.has_receiver());
        receiving.count() + self.kept.len() + self.kept_in_lanes
    }

    /// The peers read, and received bytes are taken.
    fn let_go_on(&mut self) {
        for number in 0..self.outflows.len() {
            self.peer_reads(number, usize::MAX);
        }
        for number in 0..self.lanes.len() {
            while self.take_back(number, None) {}
        }
        self.take_datagrams();
        self.files.iter_mut().for_each(Files::drain);
        self.spans.clear();
        for number in 0..self.inflows.len() {
            while let Some(span) = self.inflows[number].next(None, &mut self.awaited) {
                drop(span);
            }
        }
        self.take_what_is_there();
        self.adopt();
    }

    fn take_what_is_there(&mut self) {
        let mut number = 0;
        while number < self.handles.len() {
            let before = self.handles.len();
            self.with_handle(number, |handle| handle.ask());
            number += usize::from(self.handles.len() == before);
        }
    }

    fn check_in_flight(&self) {
        if let Some(driver) = &self.driver {
            assert!(driver.in_flight() <= self.held_for_good(), "{driver:?}");
        }
    }

    /// All handles go, and the driver with the last one.
    fn leave(&mut self) {
        let at_hand = AT_HAND.take();
        guarded(|| drop(at_hand));
        for handle in std::mem::take(&mut self.handles) {
            guarded(|| drop(handle));
        }
        for lane in std::mem::take(&mut self.lanes) {
            guarded(|| drop(lane));
        }
        self.spans.clear();
        self.inflows.iter_mut().for_each(|it| {
            it.take_receiver();
            it.drop_socket();
        });
        if let Some(driver) = &self.driver {
            // Dropped operations end before the pool is checked.
            for _ in 0..3 {
                guarded(|| driver.turn(Wait::No).expect("turns"));
            }
            let held = (self.pool.as_ref().map(Pool::held), self.window.as_ref().map(Window::held));
            assert!(!self.forgotten.is_empty() || held == (Some(0), Some(0)), "{held:?} are held");
        }
        #[cfg(feature = "getbuf")]
        if let (Some(lends), Some(driver), true) =
            (self.lends.take(), &self.driver, self.forgotten.is_empty())
        {
            lends.end(driver);
        }
        for outflow in &mut self.outflows {
            outflow.socket = None;
            outflow.before.clear();
        }
        self.datagrams.clear();
        self.groups.clear();
        if let Some(mut files) = self.files.take() {
            files.drain();
            files.check_pipe();
        }
        (self.pool, self.window, self.queue) = (None, None, None);
        let driver = self.driver.take();
        guarded(|| drop(driver));
        for forgotten in std::mem::take(&mut self.forgotten) {
            guarded(|| drop(forgotten));
        }
    }

    /// The region is unmapped when the last of its buffers is gone.
    fn check_memory(self) {
        let Self { region, home, marker, may_leak, .. } = self;
        let mapped = |(start, bytes): &(usize, Vec<u8>)| {
            let memory = std::fs::File::open("/proc/self/mem").expect("opens");
            let mut got = vec![0; bytes.len()];
            memory.read_exact_at(&mut got, *start as u64).is_ok() && got == *bytes
        };
        drop(region);
        assert!(
            home.is_empty() || mapped(&marker),
            "the region is gone, and buffers of it are not"
        );
        drop(home);
        assert!(may_leak || !mapped(&marker), "something keeps the region");
    }
}
