//! Lanes: pushed buffers come back in order, whatever happens to the lane.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use handoff::{Error, Lane, Refused, Region, Socket};

use crate::alarm::{AT_HAND, Alarm, Whim, guarded};
use crate::model::{Back, Ending, Message, content, place};
use crate::steps::{LaneEnd, Memory};
use crate::world::{MESSAGES, To, World};

/// Fewer places than a case pushes, so some buffers find no room.
const CAPACITY: usize = 3;

/// A lane and the messages in it.
pub(crate) struct Bulk {
    lane: Option<Lane>,
    to: To,
    /// Pushed and not taken back, the oldest first.
    inside: VecDeque<usize>,
    cancelled: bool,
    for_back: Option<Arc<Alarm>>,
    for_room: Option<Arc<Alarm>>,
}

impl Bulk {
    pub(crate) fn new(socket: &Socket, region: &Region, to: To) -> Self {
        let lane = socket.lane(region, CAPACITY).expect("a lane");
        let (inside, lane) = (VecDeque::new(), Some(lane));
        Self { lane, to, inside, cancelled: false, for_back: None, for_room: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// Waits for room, if there is none.
    fn await_room(&mut self, whim: Whim) {
        let Some(lane) = &self.lane else { return };
        let alarm = Alarm::new(whim);
        let polled = pin!(lane.room()).poll(&mut Context::from_waker(&alarm.waker()));
        self.for_room = polled.is_pending().then_some(alarm);
        assert_eq!(self.for_room.is_some(), self.inside.len() == CAPACITY && !self.cancelled);
    }

    /// The lane, and how many messages are in it.
    fn leave(&mut self) -> (Option<Lane>, usize) {
        (self.for_back, self.for_room) = (None, None);
        (self.lane.take(), std::mem::take(&mut self.inside).len())
    }

    fn may_refuse(&self, error: &Error, ours: bool, gone: bool) -> bool {
        match error {
            Error::LaneFull { .. } => self.inside.len() == CAPACITY,
            Error::Invalid(_) => !ours,
            Error::Canceled { .. } => self.cancelled,
            Error::StreamBroken { .. } => self.to != To::Datagram,
            Error::DriverGone => gone,
            _ => false,
        }
    }
}

impl World {
    pub(crate) fn push(&mut self, number: usize, len: usize, whim: Whim) {
        let id = self.messages.len();
        let Some(to) = self.lanes.get(number).filter(|it| it.lane.is_some()).map(|it| it.to) else {
            return;
        };
        let bytes = content(id + 1, if to == To::Datagram { len.clamp(1, 40_000) } else { len });
        let buffer = self.buffer(&bytes, Memory::Region);
        if id >= MESSAGES {
            return self.bring_home(buffer.into());
        }
        let places = vec![place(&buffer)];
        let ours = self.is_of_region(&buffer);
        let message =
            Message { bytes, header: 0, places, ending: Ending::Unknown, cancelled: false };
        let gone = self.is_gone();
        let bulk = &mut self.lanes[number];
        match bulk.lane.as_ref().expect("was there").push(buffer) {
            Ok(()) => {
                assert!(ours, "a buffer of other memory is taken");
                bulk.inside.push_back(id);
                self.out.lend(&message.places);
                self.note(to, message);
            }
            Err(Refused { buffer, error }) => {
                assert!(bulk.may_refuse(&error, ours, gone), "a push is refused: {error}");
                if matches!(error, Error::LaneFull { .. }) {
                    bulk.await_room(whim);
                }
                let back = Back::from(buffer);
                message.check_back(&back);
                self.bring_home(back);
            }
        }
    }

    /// Returns whether the oldest was back.
    pub(crate) fn take_back(&mut self, number: usize, whim: Option<Whim>) -> bool {
        let gone = self.is_gone();
        let Some(bulk) = self.lanes.get_mut(number) else { return false };
        let Some(lane) = &bulk.lane else { return false };
        let finished = match whim {
            None => lane.take(),
            Some(whim) => {
                let before = bulk.for_back.take();
                let alarm = Alarm::new(whim);
                match pin!(lane.returned()).poll(&mut Context::from_waker(&alarm.waker())) {
                    Poll::Ready(Ok(finished)) => {
                        bulk.for_back = before;
                        Some(finished)
                    }
                    Poll::Ready(Err(error)) => {
                        assert!(gone, "waiting for a lane: {error}");
                        None
                    }
                    Poll::Pending => {
                        bulk.for_back = Some(alarm);
                        None
                    }
                }
            }
        };
        let Some(finished) = finished else { return false };
        let id = bulk.inside.pop_front().expect("no more comes back than was pushed");
        self.awaited.extend(bulk.for_back.take().into_iter().chain(bulk.for_room.take()));
        self.ended(id, finished.sent);
        self.came_back(id, finished.buffer.into());
        true
    }

    pub(crate) fn end_lane(&mut self, number: usize, end: LaneEnd) {
        let Some(bulk) = self.lanes.get_mut(number) else { return };
        match end {
            LaneEnd::Cancel => {
                // The request is made, even if a waker panics because of it.
                guarded(|| bulk.lane.iter().for_each(Lane::cancel));
                bulk.cancelled = true;
                for id in &bulk.inside {
                    self.messages[*id].cancelled = true;
                }
            }
            LaneEnd::Drop => {
                let (lane, _) = bulk.leave();
                guarded(|| drop(lane));
            }
            LaneEnd::Forget => {
                let (lane, inside) = bulk.leave();
                self.kept_in_lanes += inside;
                self.forgotten.extend(lane.map(|lane| Box::new(lane) as _));
            }
            LaneEnd::LeaveToWaker => {
                let victim = bulk.leave().0.map(|lane| Box::new(lane) as _);
                AT_HAND.with_borrow_mut(|at_hand| at_hand.victims.extend(victim));
            }
        }
    }
}
